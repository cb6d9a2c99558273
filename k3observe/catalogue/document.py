"""A value of a catalogue file that knows its place, so that every complaint names file, line and field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from k3observe.config.errors import ConfigError, Problem, did_you_mean
from k3observe.config.errors import Path as Field
from k3observe.config.source import Located, load_yaml, read_bounded


@dataclass(frozen=True)
class Node:
    """One value of a document."""

    value: object
    document: Located
    field: Field

    def error(self, what: str, fix: str = "", value: object = None) -> ConfigError:
        """An error that points at this value."""
        return ConfigError([self.document.place(Problem(what, self.field, value, fix))])

    def mapping(self, known: tuple[str, ...] = ()) -> Mapping[str, Node]:
        """The value as a mapping; a key that is not in ``known`` (if given) is refused with the nearest one."""
        if not isinstance(self.value, dict):
            raise self.error("should be a mapping", value=self.value)
        found = {key: Node(value, self.document, (*self.field, key)) for key, value in self.value.items()}
        for key, node in found.items():
            if known and key not in known:
                raise node.error("is not known here", did_you_mean(key, known))
        return found

    def items(self) -> Iterator[Node]:
        """The value as a list."""
        if not isinstance(self.value, list):
            raise self.error("should be a list", value=self.value)
        return (Node(item, self.document, (*self.field, index)) for index, item in enumerate(self.value))

    def text(self) -> str:
        """The value as a string; numbers and booleans as YAML writes them."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if self.value is None or isinstance(self.value, (dict, list)):
            raise self.error("should be a string", value=self.value)
        return str(self.value)

    def number(self) -> float:
        """The value as a finite number."""
        value = self.value
        if isinstance(value, str):  # YAML 1.1 reads 1e6 as a string
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error("should be a finite number", value=self.value)
        return float(value)

    def boolean(self) -> bool:
        """The value as true or false."""
        if not isinstance(self.value, bool):
            raise self.error("should be true or false", value=self.value)
        return self.value


def read(path: Path) -> Node:
    """Read a YAML file; ConfigError with the place of what is wrong."""
    located = load_yaml(read_bounded(path), str(path))
    if located.data is None:
        raise ConfigError([Problem("is empty", file=str(path))])
    return Node(located.data, located, ())
