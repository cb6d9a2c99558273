"""Monitoring and alerting of mixture-of-experts model serving, rendered from one YAML file."""

from k3observe.version import __version__

__all__ = ["__version__"]
