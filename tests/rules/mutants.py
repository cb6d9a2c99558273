"""Small faults in PromQL: comparisons turned round, matchers and groupings dropped, metrics renamed, numbers moved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACES = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}')
_FLIPPED = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!=", "!=": "=="}


class Mutant(NamedTuple):
    """A changed expression, and what was done to it."""

    what: str
    expr: str


def mutants(expr: str) -> Iterator[Mutant]:
    """Yield all mutants of an expression."""
    plain = _STRING.sub(lambda match: '"' + "_" * (len(match[0]) - 2) + '"', expr)
    outside = _blanked(plain)
    yield from _comparisons(expr, outside)
    yield from _numbers(expr, outside)
    yield from _groupings(expr, outside)
    yield from _matchers(expr, plain)
    yield from _names(expr, plain)


def _blanked(plain: str) -> str:
    """The text with what stands in braces and brackets blanked out, so that positions stay."""
    return re.sub(r"\{[^}]*\}|\[[^\]]*\]", lambda match: " " * len(match[0]), plain)


def _comparisons(expr: str, outside: str) -> Iterator[Mutant]:
    for match in re.finditer(r">=|<=|==|!=|>|<", outside):
        changed = _FLIPPED[match[0]]
        yield Mutant(f"comparison {match[0]} at {match.start()} turned round",
                     expr[: match.start()] + changed + expr[match.end() :])  # fmt: skip


def _numbers(expr: str, outside: str) -> Iterator[Mutant]:
    """Numbers that a value is compared with or multiplied by, other than 0, which scales to itself."""
    for match in re.finditer(r"(?:>=|<=|==|!=|>|<|\*)\s+(?:bool\s+)?(\d+(?:\.\d+)?)", outside):
        value = float(match[1])
        for factor in (0.9, 1.1) if value else ():
            yield Mutant(f"{match[1]} at {match.start(1)} times {factor}",
                         expr[: match.start(1)] + repr(round(value * factor, 9)) + expr[match.end(1) :])  # fmt: skip


def _groupings(expr: str, outside: str) -> Iterator[Mutant]:
    for match in re.finditer(r"\b(?:by|without) \([^)]*\) ?", outside):
        yield Mutant(f"{match[0].strip()} at {match.start()} dropped", expr[: match.start()] + expr[match.end() :])


def _matchers(expr: str, plain: str) -> Iterator[Mutant]:
    """A label that is not selected on any more, in all selectors: those of one rule are joined on it."""
    found = {label for block in re.findall(r"\{([^}]*)\}", plain) for label in re.findall(r"(\w+)\s*[=!]", block)}
    for label in sorted(found - {"__name__"}):
        pattern = re.compile(rf',?\s*\b{label}\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"')
        changed = _BRACES.sub(partial(_without, pattern), expr)
        yield Mutant(f"matchers on {label} dropped", changed)


def _without(pattern: re.Pattern[str], match: re.Match[str]) -> str:
    return "{" + pattern.sub("", match[1]).lstrip(", ") + "}"


def _names(expr: str, plain: str) -> Iterator[Mutant]:
    regexes = re.findall(r'__name__=~"([^"]+)"', expr)
    for name in sorted({*re.findall(r"([a-zA-Z_][\w:]*)(?=\{)", plain), *regexes}):
        changed = f"({name})_x" if "|" in name else f"{name}_x"
        renamed = re.sub(rf"(?<![\w:|]){re.escape(name)}(?![\w:|])", lambda match, changed=changed: changed, expr)
        yield Mutant(f"{name} renamed", renamed)
