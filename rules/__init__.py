"""The alerts: one YAML file a group, with expression, texts in two languages, runbook and tests side by side."""

from k3observe.rules.loader import load
from k3observe.rules.model import Alert, Derived, Group, Pack

__all__ = ["Alert", "Derived", "Group", "Pack", "load"]
