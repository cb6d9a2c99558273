"""Rendering a configuration that is given as data."""

from __future__ import annotations

from pathlib import Path

import yaml

from k3observe.cli.stack import load_plan
from k3observe.plan import Plan
from k3observe.render.bundle import render


def plan_of(config: dict, folder: Path) -> Plan:
    """Plan a configuration."""
    file = folder / "k3observe.yaml"
    file.write_text(yaml.safe_dump(config))
    return load_plan(file)[1]


def render_all(plan: Plan) -> dict[str, bytes]:
    """The whole bundle."""
    return render(plan)
