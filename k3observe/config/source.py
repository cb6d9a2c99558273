"""YAML read with the line of every value, safely and within limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from k3observe.config import yaml_errors
from k3observe.config.errors import ConfigError, Path, Problem

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 200_000

_MERGE = "tag:yaml.org,2002:merge"
_UNFINISHED = object()

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
        raise ConfigError([Problem("is not UTF-8", file=name, line=line,
                                   fix=yaml_errors.encoding(raw))]) from None  # fmt: skip


def load_yaml(text: str, name: str) -> Located:
    """Parse one YAML document.

    Anchors and aliases are refused: nothing in a configuration needs them, and they are how a small file becomes
    gigabytes. Raises ConfigError with the line for bad syntax, duplicate keys, keys that are no strings, and more
    than 32 levels or 200,000 values.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError([Problem("is larger than 1 MiB", file=name)])
    with _parsing(text, name) as loader:
        node = loader.get_single_node()
        return _Reader(loader, name).located(node)


def load_documents(text: str, name: str) -> list[Located]:
    """Parse every document of somebody else's YAML file, whose aliases stay shared and therefore small.

    Raises ConfigError as ``load_yaml`` does.
    """
    found = []
    with _parsing(text, name) as loader:
        while loader.check_node():
            found.append(_Reader(loader, name, aliases=True).located(loader.get_node()))
    return found


@contextmanager
def _parsing(text: str, name: str) -> Iterator[Any]:
    loader = None
    try:
        loader = _Loader(text)
        yield loader
    except yaml.MarkedYAMLError as error:
        raise ConfigError([yaml_errors.syntax(error, text, name)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([yaml_errors.unreadable(error, text, name)]) from None
    except RecursionError:
        raise ConfigError([Problem("is nested too deeply", file=name)]) from None
    finally:
        if loader is not None:
            loader.dispose()


@dataclass
class _Reader:
    """Turns nodes into plain data, noting the line of each on the way."""

    loader: Any
    name: str
    aliases: bool = False
    lines: dict[Path, int] = field(default_factory=lambda: {(): 1})
    problems: list[Problem] = field(default_factory=list)
    built: dict[int, Any] = field(default_factory=dict)

    def located(self, node: Any) -> Located:
        data = None if node is None else self.value(node, ())
        if self.problems:
            raise ConfigError(self.problems)
        return Located(data, self.name, self.lines)

    def value(self, node: Any, path: Path) -> Any:
        line = node.start_mark.line + 1
        if id(node) in self.built:
            if self.aliases and self.built[id(node)] is not _UNFINISHED:
                return self.built[id(node)]
            raise ConfigError([Problem("anchors and aliases are not accepted", path, file=self.name, line=line,
                                       fix="write the value out")])  # fmt: skip
        self.built[id(node)] = _UNFINISHED
        if len(path) > MAX_DEPTH or len(self.built) > MAX_NODES:
            raise ConfigError([Problem("is nested too deeply or too large", path, file=self.name, line=line)])
        if isinstance(node, yaml.MappingNode):
            data: Any = self.mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            data = []
            for index, item in enumerate(node.value):
                self.lines[(*path, index)] = item.start_mark.line + 1
                data.append(self.value(item, (*path, index)))
        else:
            data = self.scalar(node, path)
        self.built[id(node)] = data
        return data

    def scalar(self, node: Any, path: Path) -> Any:
        # 2026-11-30 and 10:30 are dates and base-60 numbers to YAML 1.1; whoever writes them here means the text
        if node.tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"):
            return node.value
        try:
            data = self.loader.construct_object(node)
        except (ValueError, LookupError):  # what PyYAML raises for texts that do not fit their tag: 0x_, !!bool 2
            problem = Problem("does not fit its YAML type", path, node.value, file=self.name,
                              line=node.start_mark.line + 1)  # fmt: skip
            raise ConfigError([problem]) from None
        plain = isinstance(data, bool | str) or (isinstance(data, int | float) and ":" not in node.value)
        return data if data is None or plain else node.value

    def mapping(self, node: Any, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if self.aliases and key_node.tag == _MERGE:
                value = self.value(value_node, (*path, "<<"))
                for part in value if isinstance(value, list) else [value]:
                    merged = (part if isinstance(part, dict) else {}) | merged
                continue
            if key_node.tag == _MERGE:
                self.problems.append(Problem("merge keys are not accepted", path, "<<", file=self.name, line=line,
                                             fix="write the fields out"))  # fmt: skip
                continue
            key = self.scalar(key_node, path) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                fix = "put it in quotes" if key is not None else "put a template's {{ ... }} in quotes"
                self.problems.append(Problem("keys are plain strings", path, key, file=self.name, line=line, fix=fix))
                continue
            if key in mapping:
                self.problems.append(
                    Problem("stands twice", (*path, key), file=self.name, line=line, fix="keep one of them"))
            self.lines[(*path, key)] = line
            mapping[key] = self.value(value_node, (*path, key))
        return merged | mapping
