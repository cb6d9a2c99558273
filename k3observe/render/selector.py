"""Matchers of a rule: this stack, and the services it is for."""

from __future__ import annotations

import re
from collections.abc import Collection

from k3observe.config.model import Config

_SPECIAL = re.compile(r"[.\\+*?()|\[\]{}^$]")


def quoted(value: str) -> str:
    """Quote a label value for PromQL."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def one_of(names: Collection[str]) -> str:
    """A regular expression that matches exactly these names, quoted."""
    return quoted("|".join(_SPECIAL.sub(r"\\\g<0>", name) for name in names))


def selector(config: Config, services: Collection[str]) -> str:
    """Matchers for some services of a stack.

    No matcher where it is all of them; otherwise the shorter of naming them and naming the others. Naming the others
    also takes in devices that belong to no service.
    """
    stack = f"stack={quoted(config.stack)}"
    wanted = set(services)
    others = [service.name for service in config.services if service.name not in wanted]
    if not others:
        return stack
    inside = [service.name for service in config.services if service.name in wanted]
    if len(inside) <= len(others):
        return f"{stack}, service={quoted(inside[0])}" if len(inside) == 1 else f"{stack}, service=~{one_of(inside)}"
    return f"{stack}, service!={quoted(others[0])}" if len(others) == 1 else f"{stack}, service!~{one_of(others)}"
