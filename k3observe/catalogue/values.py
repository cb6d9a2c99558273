"""The values that catalogue files are made of: sentences, labels, ranges, bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from k3observe.catalogue.document import Node
from k3observe.catalogue.model import Label, Signal, Text
from k3observe.catalogue.version import Version, VersionRange
from k3observe.config.errors import did_you_mean

T = TypeVar("T", bound=str)


def version(node: Node) -> Version:
    """A version."""
    try:
        return Version.parse(node.text())
    except ValueError as error:
        raise node.error(str(error)) from None


def labels(node: Node) -> dict[str, Label]:
    """Labels are written ``engine: dp_rank``, ``vendor: =nvidia`` (constant), ``tier: mode~(.+)_hit`` (a part of it)
    or ``kind: xid~(.+)~xid_$1`` (with a replacement)."""
    found = {}
    for name, value in node.mapping().items():
        written = value.text()
        raw, pattern, replacement = (*written.split("~"), "", "")[:3]
        found[name] = (
            Label(constant=written[1:])
            if written.startswith("=")
            else Label(raw, pattern=pattern or "(.*)", replacement=replacement or "$1")
        )
    return found


def buckets(node: Node, named: Mapping[str, tuple[float, ...]]) -> tuple[float, ...]:
    """Bounds, written out or by the name of a list of the file."""
    if isinstance(node.value, list):
        return bounds(node)
    if node.text() not in named:
        raise node.error("names no buckets of this file", did_you_mean(node.text(), named), node.value)
    return named[node.text()]


def signal_names(node: Node, signals: Mapping[str, Signal]) -> tuple[str, ...]:
    """Names of signals."""
    for item in node.items():
        if item.text() not in signals:
            raise item.error("is no signal", did_you_mean(item.text(), signals), item.value)
    return texts(node)


def bounds(node: Node) -> tuple[float, ...]:
    """Rising bucket bounds."""
    found = tuple(item.number() for item in node.items())
    if list(found) != sorted(set(found)):
        raise node.error("bounds must rise")
    return found


def sentence(node: Node) -> Text:
    """A sentence in both languages."""
    node.mapping(("en", "zh-CN"))
    return Text(need(node, "en").text(), need(node, "zh-CN").text())


def version_range(node: Node | None) -> VersionRange:
    """A version range; all versions where there is none."""
    if node is None:
        return VersionRange()
    try:
        return VersionRange.parse(node.text())
    except ValueError as error:
        raise node.error(str(error)) from None


def port(node: Node) -> int:
    """A port."""
    number = node.number()
    if not 1 <= number <= 65535:
        raise node.error("is no port", "1 to 65535", node.value)
    return int(number)


def need(node: Node, key: str) -> Node:
    """A key that must be there."""
    found = node.mapping().get(key)
    if found is None:
        raise node.error(f"needs {key}")
    return found


def choice(node: Node, choices: tuple[T, ...]) -> T:
    """One of some words."""
    for choice in choices:
        if node.value == choice:
            return choice
    raise node.error("is not known", f"one of {', '.join(choices)}", node.value)


def texts(node: Node | None) -> tuple[str, ...]:
    """A list of strings; empty where there is none."""
    return tuple(item.text() for item in node.items()) if node else ()


def strings(node: Node) -> dict[str, str]:
    """A mapping of strings."""
    return {name: value.text() for name, value in node.mapping().items()}


class Texts:
    """Optional strings of a mapping."""

    def __init__(self, fields: Mapping[str, Node]) -> None:
        self.get: Callable[[str, str], str] = lambda key, default: fields[key].text() if key in fields else default
