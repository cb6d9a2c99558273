"""Plan -> bundle: every output of a stack as path and bytes."""

from k3observe.render.bundle import OUTPUTS, Bundle, render

__all__ = ["OUTPUTS", "Bundle", "render"]
