"""Jinja2 for text that is PromQL or a Go template of Prometheus itself, and numbers as both spell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from jinja2.environment import TemplateExpression

from k3observe.config.values import Duration

_GO = {
    "percent": "{{ $value | humanizePercentage }}",
    "ratio": '{{ printf "%.2f" $value }}',
    "seconds": '{{ printf "%.3g" $value }} s',
    "count": '{{ printf "%.0f" $value }}',
    "rate": '{{ printf "%.3g" $value }}/s',
    "celsius": '{{ printf "%.0f" $value }} °C',
    "times": '{{ printf "%.1f" $value }}x',
    "bytes": "{{ $value | humanize1024 }}B",
}
_ACTION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_NAME = re.compile(r"<<\s*([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?\s*>>")
_MORE = re.compile(r"<[<%#]")


@cache
def environment() -> Environment:
    """The one environment: delimiters that neither PromQL nor Go templates use, and no undefined names."""
    env = Environment(
        block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>",
        comment_start_string="<#", comment_end_string="#>", undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=False, autoescape=False,  # noqa: S701 - no markup is written
        optimized=False,  # most are filled once
        finalize=lambda value: number(value) if isinstance(value, float) else value)  # fmt: skip
    env.filters["duration"] = lambda seconds: str(Duration.of(seconds))
    env.filters["bytes"] = lambda value: shown(value, "bytes")
    env.filters["percent"] = lambda value: shown(value, "percent")
    return env


@cache
def _compiled(text: str) -> Template:
    return environment().from_string(text)


@cache
def _condition(text: str) -> TemplateExpression:
    return environment().compile_expression(text)


@cache
def _only_names(text: str) -> bool:
    return not _MORE.search(_NAME.sub("", text))


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Fill a template; raises jinja2.UndefinedError for a name that is not given."""
    if _only_names(text):  # as nearly all are: compiling them would take a third of the time of a whole render
        return _NAME.sub(lambda match: _named(match, values), text).strip()
    return _compiled(text).render(values).strip()


def _named(match: re.Match[str], values: Mapping[str, Any]) -> str:
    env, (name, attribute) = environment(), match.groups()
    value = values[name] if name in values else env.undefined(name=name)
    if attribute:
        value = env.getattr(value, attribute)
    return str(env.finalize(value) if env.finalize else value)


def holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether a condition such as ``threshold is none`` holds; an empty one does."""
    return not condition or bool(_condition(condition)(**values))


def number(value: float) -> str:
    """Spell a number as PromQL would: without an exponent where it can be, without trailing zeros."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(round(value, 10))


def go(unit: str) -> str:
    """The Go template that shows ``$value`` in a unit."""
    return _GO[unit]


def shown(value: float, unit: str) -> str:
    """Show a constant exactly as Prometheus shows a value of that unit."""
    return expand(_GO[unit], {}, value)


def expand(text: str, labels: Mapping[str, str], value: float) -> str:
    """Evaluate the Go template of an annotation, as Prometheus does, for the forms that the rules use.

    Raises ValueError for a form that is not known: an expectation must never be a guess.
    """

    def action(match: re.Match[str]) -> str:
        inner = match[1]
        if label := re.fullmatch(r"\$labels\.(\w+)", inner):
            return labels.get(label[1], "")
        if inner == "$value | humanizePercentage":
            return f"{_general(value * 100, 4)}%"
        if inner == "$value | humanize1024":
            return _humanize1024(value)
        if form := re.fullmatch(r'printf "%\.(\d)([fg])" \$value', inner):
            return f"{value:.{form[1]}f}" if form[2] == "f" else _general(value, int(form[1]))
        raise ValueError(f"unknown template {match[0]}")

    if "{{" in _ACTION.sub("", text):
        raise ValueError("{{ is not closed")
    return _ACTION.sub(action, text)


def _general(value: float, digits: int) -> str:
    """Go's %.Ng: as C's, but an exponent only from 21 digits on for the shortest form, else from N on."""
    return f"{value:.{digits}g}"


def _humanize1024(value: float) -> str:
    if abs(value) <= 1:
        return _general(value, 4)
    prefixes = ["", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"]
    while abs(value) >= 1024 and len(prefixes) > 1:
        value /= 1024
        prefixes.pop(0)
    return _general(value, 4) + prefixes[0]
