"""An exposition, in the text format or OpenMetrics, from the pieces of its body.

It is read line by line and only samples of the wanted names are kept, so that 30 MB cost no more memory than what is
asked of them. Prometheus refuses a whole scrape for one bad line; so does this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_LINE = 1 << 20
MAX_KEPT = 300_000
MAX_NAMES = 50_000

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_INSIDE = rf'(?:[^"}}]|{_QUOTED})*'
_LINE = re.compile(
    rf'(?:({_NAME})(?:[ \t]*(\{{{_INSIDE}\}}))?|\{{[ \t]*"({_NAME})"[ \t]*,?({_INSIDE})\}})'
    r"[ \t]*(?<=[ \t}])(\S+)(?:[ \t]+(-?[0-9][0-9.eE+-]*))?[ \t]*(?:# .*)?$"
)
_LABEL = re.compile(r'[ \t]*("?)([a-zA-Z_][a-zA-Z0-9_]*)\1[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_TYPE = re.compile(rf'#[ \t]+TYPE[ \t]+"?({_NAME})"?[ \t]+(\S+)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class SourceError(ValueError):
    """A source cannot be read: ``source:line: what is wrong: what to do``."""


class Sample(NamedTuple):
    """One line of a wanted name; ``timestamp`` is Unix time in seconds where the line has one."""

    labels: Mapping[str, str]
    value: float
    timestamp: float | None


@dataclass(frozen=True)
class Exposition:
    """What one source said. Names are as the catalogue spells them (``vllm:x``), whatever the source wrote."""

    source: str
    url: str
    types: Mapping[str, str]
    """Type by family name; of a counter with its ``_total``."""
    counts: Mapping[str, int]
    """Series by sample name, of all names."""
    samples: Mapping[str, tuple[Sample, ...]]
    """Samples of the wanted names."""
    spelling: str
    """"underscore" when engine names came as ``vllm_x``, else "colon"."""
    openmetrics: bool
    notes: tuple[str, ...] = ()


def parse(pieces: Iterator[bytes], source: str, wanted: Callable[[str], bool], url: str = "") -> Exposition:
    """Read an exposition from pieces of its body; SourceError names the line that is wrong."""
    types: dict[str, str] = {}
    counts: dict[str, int] = {}
    samples: dict[str, list[Sample]] = {}
    kept, number, ended, cut = 0, 0, False, False
    spelled: set[str] = set()
    for number, (line, whole) in enumerate(_lines(pieces, source), 1):
        if ended and line.strip():
            raise SourceError(f"{source}:{number}: stands after # EOF: two captures in one file? give them one by one")
        if not line or line.isspace():
            continue
        if line[0] == "#":
            ended = ended or line.rstrip() == "# EOF"
            found = _TYPE.match(line)
            if found:
                types[canonical(found[1])] = found[2]
            continue
        match = _LINE.match(line)
        value = _number(match[5]) if match else None
        if match is None or value is None:
            raise _bad_line(line, number, whole, source)
        written = match[1] or match[3]
        name = canonical(written)
        if name != written:
            spelled.add("underscore")
        cut = cut or not whole
        if name not in counts and len(counts) >= MAX_NAMES:
            raise SourceError(f"{source}:{number}: has more than {MAX_NAMES} metric names: is it an exposition?")
        counts[name] = counts.get(name, 0) + 1
        if wanted(name):
            kept += 1
            if kept > MAX_KEPT:
                raise SourceError(f"{source}:{number}: has more than {MAX_KEPT} series of engine metrics: {name}")
            labels = _labels((match[2] or "{}")[1:-1] if match[1] else match[4])
            if labels is None:
                raise _bad_line(line, number, whole, source)
            samples.setdefault(name, []).append(Sample(labels, value, _number(match[6]) if match[6] else None))
    if not counts:
        raise SourceError(f"{source}: has no metrics in it" + (": is it the right path?" if url else ": is it empty?"))
    notes = ("the last line has no line feed: the capture may be cut short",) if cut and not ended else ()
    scale = 1.0 if ended else 0.001  # the text format counts milliseconds
    return Exposition(
        source,
        url,
        _named_as_sampled(types, counts),
        counts,
        {name: tuple(s._replace(timestamp=s.timestamp * scale if s.timestamp is not None else None) for s in rows)
         for name, rows in samples.items()},
        "underscore" if spelled else "colon",
        ended,
        notes,
    )  # fmt: skip


def canonical(name: str) -> str:
    """A name as the catalogue spells it: scrapers that know no colons write ``vllm_x`` for ``vllm:x``."""
    for prefix in ("vllm", "sglang"):
        if name.startswith(prefix + "_"):
            return f"{prefix}:{name[len(prefix) + 1 :]}"
    return name


def _lines(pieces: Iterator[bytes], source: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether a line feed ended them."""
    rest = b""
    count = 0
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            count += 1
            yield _decoded(line, source, count), True
        if len(rest) > MAX_LINE:
            raise SourceError(
                f"{source}:{count + 1}: has a line longer than {MAX_LINE >> 20} MiB: is it an exposition?"
            )
    if rest:
        yield _decoded(rest, source, count + 1), False


def _decoded(line: bytes, source: str, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise SourceError(f"{source}:{number}: is not UTF-8: {line[:40]!r}: is it an exposition?") from None


def _bad_line(line: str, number: int, whole: bool, source: str) -> SourceError:
    shown = line if len(line) <= 100 else line[:99] + "…"
    shown = "".join(character if character.isprintable() else "?" for character in shown)
    if line.lstrip()[:1] == "<":
        return SourceError(f"{source}:{number}: is a web page, not metrics: {shown}: give the URL of /metrics")
    if not whole:
        return SourceError(f"{source}:{number}: is cut short in the middle of a line: {shown}: capture it again")
    return SourceError(f"{source}:{number}: is no sample: {shown}: Prometheus refuses the whole scrape for this line")


def _labels(block: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    position = 0
    while block[position:].strip():
        match = _LABEL.match(block, position)
        if match is None or match[2] in found:
            return None
        text = match[3]
        found[match[2]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), text) if "\\" in text else text
        position = match.end()
    return found


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _named_as_sampled(types: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, str]:
    """OpenMetrics leaves ``_total`` off the family of a counter; samples have it."""
    found = {}
    for name, kind in types.items():
        counter = kind == "counter" and not name.endswith("_total") and name + "_total" in counts
        found[name + "_total" if counter else name] = kind
    return found
