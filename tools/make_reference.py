"""Writes docs/configuration.md and docs/commands.md from the schema and from the commands themselves.

``python -m tools.make_reference`` writes them; with ``--check`` it only says whether they are current.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from k3observe.cli.main import COMMANDS, cli
from k3observe.config.model import Config

DOCS = Path(__file__).resolve().parent.parent / "docs"


def configuration() -> str:
    """Every field of the configuration, section by section."""
    lines = [
        "# Configuration",
        "",
        "Every field of `k3observe.yaml`. Made from the schema by `python -m tools.make_reference`; "
        "`k3observe schema` prints the same for editors.",
        "",
    ]
    seen: set[type[BaseModel]] = set()
    waiting: list[tuple[str, type[BaseModel]]] = [("the file", Config)]
    while waiting:
        path, model = waiting.pop(0)
        if model in seen:
            continue
        seen.add(model)
        doc = (model.__doc__ or "").strip().split("\n")[0]
        lines += [f"## {path}", "", doc, "", "| field | type | default | meaning |", "|---|---|---|---|"]
        for name, field in model.model_fields.items():
            shown = field.alias or name
            children = list(_models(field.annotation))
            lines.append(
                f"| `{shown}` | {_type(field.annotation)} | {_default(field)} | {(field.description or '').strip()} |"
            )
            waiting += [(shown if path == "the file" else f"{path}.{shown}", child) for child in children]
        lines.append("")
    return "\n".join(lines)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for part in (annotation, *typing.get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
        elif part is not annotation:
            yield from _models(part)


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(part) for part in arguments if part is not type(None))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Duration": "duration"}.get(
        getattr(annotation, "__name__", ""), "text"
    )


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ([], {}) or isinstance(value, BaseModel):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def commands() -> str:
    """The help of every command."""
    lines = ["# Commands", "", "What `--help` says. Made by `python -m tools.make_reference`.", ""]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        if command is None:
            continue
        context = click.Context(command, info_name=f"k3observe {name}", max_content_width=100, terminal_width=100)
        lines += [f"## k3observe {name}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(lines)


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for name, text in (("configuration.md", configuration()), ("commands.md", commands())):
        path = DOCS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{'stale' if '--check' in sys.argv else 'written'}: docs/{name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
