"""YAML read with the line of every value, safely and within limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from k3observe.config.errors import ConfigError, Path, Problem

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 500_000

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Located:
    """Plain data of a YAML document, and the line (from 1) on which each key or item stands."""

    data: Any
    file: str
    lines: Mapping[Path, int] = field(repr=False, default_factory=dict)

    def line(self, path: Path) -> int:
        """Return the line of the nearest thing that exists on the way to ``path``."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def place(self, problem: Problem) -> Problem:
        """Give a problem its file and line."""
        return Problem(
            problem.what, problem.path, problem.value, problem.fix, self.file, problem.line or self.line(problem.path)
        )


def read_bounded(path: FilePath) -> str:
    """Read a UTF-8 text file of at most 1 MiB.

    Raises ConfigError when it cannot be read, is larger, or is no UTF-8.
    """
    name = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        fix = "run `k3observe init` to write one" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError([Problem(f"cannot be read: {error.strerror}", file=name, fix=fix)]) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError([Problem("is larger than 1 MiB", file=name, fix="split services over several stacks")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem("is not UTF-8", file=name, line=line, fix="save it as UTF-8")]) from None


def load_yaml(text: str, name: str) -> Located:
    """Parse one YAML document.

    Anchors and aliases are refused: nothing in a configuration needs them, and they are how a small file becomes
    gigabytes. Raises ConfigError with the line for bad syntax, duplicate keys, keys that are no strings, and more
    than 32 levels or 500,000 values.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError([Problem("is larger than 1 MiB", file=name)])
    loader = _Loader(text)
    lines: dict[Path, int] = {(): 1}
    problems: list[Problem] = []
    try:
        seen: set[int] = set()
        node = loader.get_single_node()
        data = None if node is None else _build(loader, node, (), lines, problems, seen, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = Problem(str(error.problem or error.context), file=name, line=mark.line + 1 if mark else 1)
        raise ConfigError([problem]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([Problem(f"is no YAML: {error}".split("\n")[0], file=name)]) from None
    except RecursionError:
        raise ConfigError([Problem("is nested too deeply", file=name)]) from None
    finally:
        loader.dispose()
    if problems:
        raise ConfigError(problems)
    return Located(data, name, lines)


def _build(
    loader: Any, node: Any, path: Path, lines: dict[Path, int], problems: list[Problem], seen: set[int], name: str
) -> Any:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise ConfigError([Problem("anchors and aliases are not accepted", path, file=name, line=line,
                                   fix="write the value out")])  # fmt: skip
    seen.add(id(node))
    if len(path) > MAX_DEPTH or len(seen) > MAX_NODES:
        raise ConfigError([Problem("is nested too deeply or too large", path, file=name, line=line)])
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key_line = key_node.start_mark.line + 1
            key = loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key_node.tag == "tag:yaml.org,2002:merge":
                problems.append(Problem("keys are plain strings", path, key, file=name, line=key_line))
                continue
            if key in mapping:
                problems.append(Problem("stands twice", (*path, key), file=name, line=key_line, fix="keep one of them"))
            lines[(*path, key)] = key_line
            mapping[key] = _build(loader, value_node, (*path, key), lines, problems, seen, name)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            items.append(_build(loader, item, (*path, index), lines, problems, seen, name))
        return items
    value = loader.construct_object(node)
    # 2026-11-30 and 10:30 are dates and base-60 numbers to YAML 1.1; whoever writes them here means the text
    return value if value is None or isinstance(value, bool | int | float | str) else node.value
