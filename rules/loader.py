"""Reads the rule files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import ValidationError

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.source import load_yaml, read_bounded
from k3observe.rules.model import Group, Pack


@cache
def load(folder: Path = Path(__file__).parent) -> Pack:
    """Read every ``*.yaml`` of a folder of rules; raises ConfigError with file and line."""
    groups = tuple(_group(path) for path in sorted(folder.glob("*.yaml")))
    names = [alert.name for group in groups for alert in group.alerts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError([Problem(f"the alert {name} stands twice", file=str(folder)) for name in sorted(twice)])
    return Pack(groups=groups)


def _group(path: Path) -> Group:
    source = load_yaml(read_bounded(path), str(path))
    try:
        return Group.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError(
            source.place(Problem(item["msg"], tuple(item["loc"]), fix="see docs/rules.md"))
            for item in error.errors(include_url=False)
        ) from None
