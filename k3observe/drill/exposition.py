"""A captured exposition as data: read from text format 0.0.4 or OpenMetrics 1.0, written in either.

Values change, names and label sets stay as captured. Names are kept as the text format spells them (`x_total` is the
family of a counter); OpenMetrics drops that suffix from the family and has no `_created` families of their own.
Timestamps and exemplars are left out: they belong to the moment of the capture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Format = Literal["text", "openmetrics"]
Spelling = Literal["colon", "underscore"]

MAX_BYTES = 16 << 20
"""An engine with every flag on exposes 0.3 MB."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf'({_NAME})(\{{(?:[^"}}]|"(?:\\.|[^"\\])*")*\}})?[ \t]+(\S+)')
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:\\.|[^"\\])*)"\s*,?')
_COMMENT = re.compile(rf"#[ \t]+(TYPE|HELP)[ \t]+({_NAME})(?:[ \t]+(.*))?$")
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_MEMBER_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created", "_info", "_gsum", "_gcount")
_TYPE_IN_TEXT = {"unknown": "untyped", "info": "gauge", "stateset": "gauge", "gaugehistogram": "histogram"}


class ExpositionError(ValueError):
    """The capture is not an exposition: `name:line: what is wrong: the line`."""


@dataclass(frozen=True)
class Series:
    """One line of an exposition."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str | None:
        """Return the value of a label, None where the series lacks it."""
        return dict(self.labels).get(name)


@dataclass(frozen=True)
class Family:
    """Series under one `# TYPE` line: `kind` is counter, gauge, histogram, summary or untyped."""

    name: str
    kind: str
    help: str | None
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Exposition:
    """Everything that one scrape returned, in its order."""

    source: str
    families: tuple[Family, ...]


def parse(text: str, source: str = "exposition") -> Exposition:
    """Read an exposition in either format.

    Raises ExpositionError on a line that is none, and on a capture over MAX_BYTES.
    """
    if len(text) > MAX_BYTES:
        raise ExpositionError(f"{source}: over {MAX_BYTES >> 20} MiB: {len(text)} characters")
    openmetrics = text.rstrip().endswith("# EOF")
    kinds: dict[str, str] = {}
    helps: dict[str, str] = {}
    members: dict[str, list[Series]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if line.startswith("#"):
            comment = _COMMENT.match(line)
            if comment and comment[1] == "TYPE":
                name, kind = _as_in_text(comment[2], (comment[3] or "").strip(), openmetrics)
                kinds[name] = kind
                members.setdefault(name, [])
            elif comment:
                helps[comment[2]] = comment[3] or ""
            continue
        series = _series(line, source, number)
        members.setdefault(_family_of(series.name, kinds), []).append(series)
    families = (
        Family(name, kinds.get(name, "untyped"), helps.get(name, helps.get(_base(name))), tuple(found))
        for name, found in members.items()
    )
    return Exposition(source, tuple(families))


def write(families: Sequence[Family], form: Format, spelling: Spelling) -> str:
    """Write families as a server would: byte for byte the client library's layout, with this spelling of names."""
    lines = _text(families) if form == "text" else _openmetrics(families)
    if spelling == "underscore":
        lines = (_escaped(line) for line in lines)
    return "".join(f"{line}\n" for line in lines)


def created_base(family: Family, known: Iterable[str]) -> str | None:
    """Return the family whose birth times this one holds (`x_total` for `x_created`), None for any other family."""
    if not family.name.endswith("_created"):
        return None
    base = family.name.removesuffix("_created")
    names = set(known)
    return next((name for name in (base, f"{base}_total") if name in names), None)


def _series(line: str, source: str, number: int) -> Series:
    found = _SAMPLE.match(line)
    if found is None:
        raise ExpositionError(f"{source}:{number}: not a sample `name{{label=\"value\"}} number`: {line[:120]}")
    try:
        value = float(found[3])
    except ValueError:
        raise ExpositionError(f"{source}:{number}: not a number: {found[3][:40]}") from None
    labels: list[tuple[str, str]] = []
    block, position = (found[2] or "{}")[1:-1], 0
    while block[position:].strip():
        label = _LABEL.match(block, position)
        if label is None:
            raise ExpositionError(f"{source}:{number}: not a label `name=\"value\"`: {block[position:][:80]}")
        labels.append((label[1], re.sub(r"\\.", lambda m: _UNESCAPED.get(m[0], m[0]), label[2])))
        position = label.end()
    return Series(found[1], tuple(labels), value)


def _as_in_text(name: str, kind: str, openmetrics: bool) -> tuple[str, str]:
    if openmetrics and kind in ("counter", "info"):
        name += "_total" if kind == "counter" else "_info"
    return name, _TYPE_IN_TEXT.get(kind, kind)


def _family_of(name: str, kinds: dict[str, str]) -> str:
    if name in kinds:
        return name
    for suffix in _MEMBER_SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and suffix != "_created" and base in kinds:
            return base
    return name


def _base(name: str) -> str:
    return name.removesuffix("_total")


def _text(families: Sequence[Family]) -> Iterator[str]:
    for family in families:
        if family.help is not None:
            yield f"# HELP {family.name} {family.help}"
        yield f"# TYPE {family.name} {family.kind}"
        yield from map(_line, family.series)


def _openmetrics(families: Sequence[Family]) -> Iterator[str]:
    names = [family.name for family in families]
    for family in families:
        if created_base(family, names):
            continue
        name, kind = family.name, family.kind
        if kind == "counter" and name.endswith("_total"):
            name = _base(name)
        elif kind in ("counter", "untyped"):  # without `_total` OpenMetrics knows no counter
            kind = "unknown"
        if family.help is not None:
            yield f"# HELP {name} {family.help}"
        yield f"# TYPE {name} {kind}"
        yield from map(_line, family.series)
    yield "# EOF"


def _line(series: Series) -> str:
    labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in series.labels)
    return f"{series.name}{{{labels}}} {_number(series.value)}" if labels else f"{series.name} {_number(series.value)}"


def _escaped(line: str) -> str:
    """Escape the metric's name as `underscores` does: its colons become underscores, label values keep theirs."""
    if line.startswith("# EOF"):
        return line
    start = len("# HELP ") if line.startswith("#") else 0
    name = re.match(_NAME, line[start:])
    if name is None:
        return line
    return line[:start] + name[0].replace(":", "_") + line[start + name.end() :]


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
