"""Text of a configuration -> a validated Config that knows the line of each field."""

from __future__ import annotations

import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from k3observe.config.errors import ConfigError, FieldError, Path, Problem, did_you_mean
from k3observe.config.model import Config
from k3observe.config.source import Located, load_yaml, read_bounded

_PLAINLY = {
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and where it came from."""

    config: Config
    source: Located

    @property
    def folder(self) -> FilePath:
        """The folder of the file; relative paths in it start there."""
        return FilePath(self.source.file).parent

    def error(self, *problems: Problem) -> ConfigError:
        """Make problems of later stages point at the file and line."""
        return ConfigError(self.source.place(problem) for problem in problems)


def load(path: FilePath) -> Loaded:
    """Read and validate a configuration file; raises ConfigError with every problem found."""
    return loads(read_bounded(path), str(path))


def loads(text: str, name: str = "k3observe.yaml") -> Loaded:
    """Validate the text of a configuration; raises ConfigError with every problem found."""
    source = load_yaml(text, name)
    if not isinstance(source.data, dict):
        wide = isinstance(source.data, str) and "：" in source.data
        fix = "write ': ' in place of the full-width ：" if wide else "run `k3observe init` to write one"
        raise ConfigError([Problem("is no configuration: a mapping with version, stack and services is needed",
                                   file=name, line=1, fix=fix)])  # fmt: skip
    try:
        return Loaded(Config.model_validate(source.data), source)
    except ValidationError as error:
        raise ConfigError(_problems(error.errors(include_url=False), source)) from None


def _problems(errors: list[Any], source: Located) -> list[Problem]:
    """Each problem once, by line; words that a field takes are one list, however many parts the schema has of it."""
    allowed: dict[Path, list[str]] = {}
    found: dict[str, Problem] = {}
    for error in errors:
        path = _real_path(error["loc"], source.data)
        if error["type"] == "literal_error":
            allowed.setdefault(path, []).extend(re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    for error in errors:
        path = _real_path(error["loc"], source.data)
        problem = source.place(_problem(error, path, allowed.get(path, [])))
        found[str(problem)] = problem
    return sorted(found.values(), key=lambda problem: (problem.line, str(problem)))


def _problem(error: Any, path: Path, allowed: list[str]) -> Problem:
    kind, value = error["type"], error["input"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return Problem(cause.what, path + cause.path, cause.value, cause.fix)
    if kind == "missing":
        return Problem("is missing", path, fix=f"add {path[-1]}:")
    if kind == "extra_forbidden":
        return Problem("is no known field", path, fix=did_you_mean(str(path[-1]), _fields(Config, path[:-1])))
    if kind == "literal_error":
        words = allowed or [error["ctx"]["expected"]]
        near = did_you_mean(str(value), words)
        return Problem("is not one of " + ", ".join(words), path, value, near if near.startswith("did") else "")
    what = _PLAINLY.get(kind) or error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    what, _, fix = what.partition("; ")
    shown = None if isinstance(value, dict | list) and len(str(value)) > 80 else value
    return Problem(what, path, shown, fix)


def _real_path(loc: tuple[Any, ...], data: object) -> Path:
    """Drop the steps pydantic adds for unions and validators, which do not stand in the file."""
    path: list[str | int] = []
    for index, step in enumerate(loc):
        if isinstance(data, dict) and isinstance(step, str):
            if step in data:
                data = data[step]
            elif index < len(loc) - 1 or step == "[key]":
                continue
            path.append(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
            path.append(step)
    return tuple(path)


def _fields(model: type[BaseModel], path: Path) -> set[str]:
    """Names that may stand at ``path``, found by walking the schema."""
    current: set[Any] = {model}
    for step in path:
        found: set[Any] = set()
        for kind in current:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                for name, field in kind.model_fields.items():
                    if step in (name, field.alias):
                        found |= _classes(field.annotation)
            elif typing.get_origin(kind) in (list, dict):
                found |= _classes(typing.get_args(kind)[-1])
        current = found
    return {
        field.alias or name
        for kind in current
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name, field in kind.model_fields.items()
    }


def _classes(annotation: Any) -> set[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _classes(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_classes(arg) for arg in typing.get_args(annotation)))
    return {annotation}
