"""Exporters that run as sidecars beside the engine."""
