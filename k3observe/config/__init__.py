"""The user's configuration: schema, loader with line numbers, presets and the reader of launch commands."""

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.loader import Loaded, load, loads
from k3observe.config.model import Config

__all__ = ["Config", "ConfigError", "Loaded", "Problem", "load", "loads"]
