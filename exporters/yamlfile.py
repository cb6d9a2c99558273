"""Reads a small YAML file into values that know their line, within limits; imported only when a file is given.

Scalars stay the text that was written (``on`` is ``"on"``): what they mean is for the reader of the field to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 16

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(Exception):
    """A file that cannot be used; the message begins with ``file:line:``."""


class Node(NamedTuple):
    """A value and the line it stands on; null is an empty scalar."""

    value: str | list[Node] | dict[str, Node]
    line: int


def load(path: Path) -> Node:
    """Return the only document of a file; an empty one is an empty mapping.

    Raises YamlError when it cannot be read, is no YAML, larger than 1 MiB, deeper than 16, has aliases, a key twice
    or a key that is no plain text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlError(f"{path}: cannot read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise YamlError(f"{path}: larger than {MAX_BYTES} bytes: is it the right file?")
    try:
        return _tree(path, data)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise YamlError(f"{path}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def _tree(path: Path, data: bytes) -> Node:
    """Build the tree from parser events: unlike the composer that does not recurse."""
    open_nodes: list[Node] = []
    keys: list[str | None] = []
    root: Node | None = None

    def fail(line: int, problem: str) -> YamlError:
        return YamlError(f"{path}:{line}: {problem}")

    for event in yaml.parse(data, Loader=_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            open_nodes.pop()
            keys.pop()
            continue
        if isinstance(event, yaml.AliasEvent):
            raise fail(line, f"*{event.anchor}: aliases are not supported: write the value out")
        if isinstance(event, yaml.DocumentStartEvent) and root is not None:
            raise fail(line, "a second document: keep one")
        if not isinstance(event, (yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            continue
        node = Node([], line) if isinstance(event, yaml.SequenceStartEvent) else Node({}, line)
        if isinstance(event, yaml.ScalarEvent):
            null = event.style is None and event.value in ("~", "null", "Null", "NULL")
            node = Node("" if null else event.value, line)
        if not open_nodes:
            root = node
        elif isinstance(parent := open_nodes[-1].value, list):
            parent.append(node)
        elif isinstance(parent, dict):
            key = keys[-1]
            if key is not None:
                parent[key] = node
                keys[-1] = None
            elif not isinstance(node.value, str):
                raise fail(line, "a key must be plain text")
            elif node.value in parent:
                raise fail(line, f"{node.value}: given twice: keep one")
            else:
                keys[-1] = node.value
        if not isinstance(node.value, str):
            open_nodes.append(node)
            keys.append(None)
            if len(open_nodes) > MAX_DEPTH:
                raise fail(line, f"nested deeper than {MAX_DEPTH}")
    if root is None or root.value == "":
        return Node({}, 1)
    return root
