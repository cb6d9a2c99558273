"""``python -m tools.make_reference``: the pages on the configuration, in English and Chinese, and on the commands.

Meanings come from the schema and the commands themselves, those in Chinese from ``configuration.zh-CN.yaml``.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from k3observe.cli.main import COMMANDS, cli
from k3observe.config.model import Config

DOCS = Path(__file__).resolve().parent.parent / "docs"
ENGLISH = {
    "title": "Configuration",
    "about": "Every field of `k3observe.yaml`; `k3observe schema` prints the same for editors. Made from the schema by "
             "`python -m tools.make_reference`. [中文](zh-CN/configuration.md)",
    "file": "The file",
    "head": "| field | type | default | meaning |",
    "required": "required", "or": " or ", "list": "list: ", "map": "mapping to ", "section": "section",
    "str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Duration": "duration",
}  # fmt: skip
CHINESE = {
    "title": "配置",
    "about": "`k3observe.yaml` 的全部字段；`k3observe schema` 为编辑器输出同样的内容。"
             "本页由 `python -m tools.make_reference` 根据 schema 生成。[English](../configuration.md)",
    "file": "整个文件",
    "head": "| 字段 | 类型 | 默认值 | 含义 |",
    "required": "必填", "or": " 或 ", "list": "列表：", "map": "映射，值为", "section": "小节",
    "str": "文本", "int": "整数", "float": "数值", "bool": "true 或 false", "Duration": "时长",
}  # fmt: skip


def meanings() -> dict[str, str]:
    """What each section (``Service``) and each of its fields (``Service.name``) means, in the order of the page."""
    found = {}
    for _, section in _sections():
        found[section.__name__] = (section.__doc__ or "").partition("\n")[0].replace("``", "`")
        for name, field in section.model_fields.items():
            found[f"{section.__name__}.{field.alias or name}"] = field.description or ""
    return found


def chinese_meanings() -> dict[str, str]:
    """The same in Chinese."""
    found: dict[str, str] = yaml.safe_load(Path(__file__).with_name("configuration.zh-CN.yaml").read_text("utf-8"))
    return found


def configuration(words: Mapping[str, str], meaning: Mapping[str, str]) -> str:
    """Every field of the configuration, section by section."""
    sections = list(_sections())
    places = {section: path for path, section in sections}
    lines = [f"# {words['title']}", "", words["about"], ""]
    for path, section in sections:
        lines += [f"## {path or words['file']}", "", meaning[section.__name__], "", words["head"], "|---|---|---|---|"]
        for name, field in section.model_fields.items():
            name = field.alias or name
            kind = _type(field.annotation, words, places)
            lines.append(
                f"| `{name}` | {kind} | {_default(field, words)} | {_cell(meaning[f'{section.__name__}.{name}'])} |")
        lines.append("")
    return "\n".join(lines)


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section once, under the path where it stands first; those nearer to the root come first."""
    seen: set[type[BaseModel]] = set()
    waiting: list[tuple[str, type[BaseModel]]] = [("", Config)]
    while waiting:
        path, section = waiting.pop(0)
        if section in seen:
            continue
        seen.add(section)
        yield path, section
        for name, field in section.model_fields.items():
            inner = f"{path}.{field.alias or name}".removeprefix(".")
            waiting += [(inner, child) for child in _children(field.annotation)]


def _children(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _children(part)


def _type(annotation: Any, words: Mapping[str, str], places: Mapping[type[BaseModel], str]) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], words, places)
    if origin in (typing.Union, types.UnionType):
        kinds = (_type(part, words, places) for part in arguments if part is not type(None))
        return words["or"].join(dict.fromkeys(kinds))
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (list, dict):
        return words["list" if origin is list else "map"] + _type(arguments[-1], words, places)
    if annotation in places:
        return f"[{words['section']}](#{places[annotation].replace('.', '')})"
    return words[annotation.__name__]


def _default(field: FieldInfo, words: Mapping[str, str]) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return words["required"]
    if value is None or value in ([], {}) or isinstance(value, BaseModel):
        return ""
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"`{shown.lower() if isinstance(value, bool) else shown}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> str:
    """The help of every command."""
    lines = ["# Commands", "", "What `--help` says. Made by `python -m tools.make_reference`.", ""]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        context = click.Context(command, info_name=f"k3observe {name}", max_content_width=100, terminal_width=100)
        lines += [f"## k3observe {name}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """The pages, by their path below docs/."""
    return {
        "configuration.md": configuration(ENGLISH, meanings()),
        "zh-CN/configuration.md": configuration(CHINESE, chinese_meanings()),
        "commands.md": commands(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        (DOCS / path).write_text(text, encoding="utf-8")
