"""The value of a signal in one exposition, worked out as the recording rule would, without a Prometheus.

Rates are not to be had from one scrape: a histogram or summary reads as the mean of all its observations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from k3observe.catalogue.expression import label_sources
from k3observe.catalogue.model import Entry, Label, Signal, Term

Row = tuple[Mapping[str, str], float]
Labels = tuple[tuple[str, str], ...]
Series = Callable[[str], Iterable[Row]]
"""Samples of a name, which is spelled with the colon."""

Reading = dict[Labels, float]
"""Values by the labels of the signal, those of the target left out."""


def read(signal: Signal, entry: Entry, series: Series, now: float) -> Reading:
    """The signal's values; empty when the exposition has none. ``now`` (Unix time) dates what is an age."""
    if entry.terms[0].type in ("histogram", "summary"):
        return _means(signal, entry, series)
    if entry.combine == "first":
        found: Reading = {}
        for term in entry.terms:
            found = {**_aggregate(entry, _rows(signal, entry, term, "", series, now)), **found}
    else:
        rows = [row for term in entry.terms for row in _rows(signal, entry, term, "", series, now)]
        found = _aggregate(entry, rows)
    factor = entry.scale * (_block_size(entry.blocks, series) if entry.blocks else 1.0)
    return {labels: value * factor for labels, value in found.items()}


def count(signal: Signal, entry: Entry, series: Series) -> float:
    """Observations of a histogram or summary."""
    return sum(value for term in entry.terms[:1] for _, value in _rows(signal, entry, term, "_count", series, 0.0))


def _means(signal: Signal, entry: Entry, series: Series) -> Reading:
    sums, counts = (
        _added([row for term in entry.terms for row in _rows(signal, entry, term, suffix, series, 0.0)])
        for suffix in ("_sum", "_count")
    )
    return {labels: sums.get(labels, 0.0) / number * entry.scale for labels, number in counts.items() if number > 0}


def _rows(
    signal: Signal, entry: Entry, term: Term, suffix: str, series: Series, now: float
) -> list[tuple[Labels, float]]:
    highest: dict[Labels, float] = {}
    for labels, raw in series(term.name + suffix):
        if not all(matches(labels.get(name, ""), wanted) for name, wanted in term.match.items()):
            continue
        if entry.at_least is not None and raw < entry.at_least:
            continue
        value = now - raw if entry.age else raw
        if entry.equals is not None:
            value = float(raw == entry.equals)
        key = tuple(sorted((name, text) for name, text in labels.items() if name not in entry.collapse))
        highest[key] = max(value, highest.get(key, value))
    sources = label_sources(signal, entry, term)
    return [(_labels(sources, dict(labels)), value) for labels, value in highest.items()]


def _labels(sources: Mapping[str, Label], raw: Mapping[str, str]) -> Labels:
    found = {name: _label(label, raw.get(label.raw, ""), raw.get(name, "")) for name, label in sources.items()}
    if "engine" in found and not found["engine"]:
        found["engine"] = "0"
    return tuple(sorted((name, value) for name, value in found.items() if value))


def _label(label: Label, value: str, own: str) -> str:
    if label.constant:
        return label.constant
    match = re.fullmatch(label.pattern, value)
    return label.replacement.replace("$1", match[1]) if match else own


def matches(value: str, wanted: str) -> bool:
    """Whether a raw label's value is what a term's ``match`` wants; a label that is not there has the value ""."""
    return bool(re.fullmatch(wanted[1:], value)) if wanted.startswith("~") else value == wanted


def _aggregate(entry: Entry, rows: Sequence[tuple[Labels, float]]) -> Reading:
    groups: dict[Labels, list[float]] = {}
    for labels, value in rows:
        groups.setdefault(labels, []).append(value)
    combine: dict[str, Callable[[list[float]], float]] = {
        "max": max,
        "min": min,
        "sum": sum,
        "count": lambda values: float(len(values)),
    }
    return {labels: combine[entry.aggregate](values) for labels, values in groups.items()}


def _added(rows: Sequence[tuple[Labels, float]]) -> Reading:
    found: Reading = {}
    for labels, value in rows:
        found[labels] = found.get(labels, 0.0) + value
    return found


def _block_size(info: str, series: Series) -> float:
    sizes = [int(labels["block_size"]) for labels, _ in series(info) if labels.get("block_size", "").isdecimal()]
    return float(max(sizes, default=0))
