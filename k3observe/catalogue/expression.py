"""PromQL that records a signal from raw metrics, and raw series that would yield a given value of it.

Every raw selector accepts both spellings of an engine's names, ``vllm:x`` and ``vllm_x``: prometheus_client writes the
colon, and Prometheus before 3.0 (or with escaping on) stores the underscore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from k3observe.catalogue.model import Entry, Label, Signal, Term

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Tokens per KV block that vLLM accepts; the size is a label value of its config metric, which PromQL cannot read."""

Spelling = Literal["colon", "underscore"]


class ExampleSeries(NamedTuple):
    """A raw series. Its value is ``factor * value + offset`` for a value of the signal.

    With ``clock`` it is a Unix time, and its value is the evaluation time minus the signal's value. With ``from_count``
    the signal counts series: this one exists while the signal's value is at least that number.
    """

    series: str
    factor: float
    offset: float = 0.0
    clock: bool = False
    from_count: int = 0


def recording(
    signal: Signal, entry: Entry, matchers: Mapping[str, str] | str, by: Sequence[str], window: str = "5m"
) -> list[tuple[str, str]]:
    """Pairs of recorded name and expression; three (bucket, sum, count) for a histogram, whose rates it pools.

    ``matchers`` select the targets (``{"stack": "kimi-k3", "job": "k3-engine"}`` or text as PromQL has it), ``by``
    are the labels of the service to keep. The signal's own labels are always kept.
    """
    entry = replace(entry, collapse=tuple(label for label in entry.collapse if label not in by))
    fixed = matchers if isinstance(matchers, str) else ",".join(f"{k}={_quote(v)}" for k, v in matchers.items())
    if signal.kind != "histogram":
        return [(signal.series, _value(signal, entry, fixed, by, window))]
    pairs = []
    for suffix in ("_bucket", "_sum", "_count"):
        keep = [*by, "le"] if suffix == "_bucket" else [*by]
        rates = [_collapsed(f"rate({_selector(term, suffix, fixed)}[{window}])", entry) for term in entry.terms]
        pooled = " or ".join(f"sum by ({', '.join(keep)}) ({rate})" for rate in rates)
        pairs.append((f"{signal.series}{suffix}:rate{window}", pooled + _scaled(entry) * (suffix == "_sum")))
    return pairs


def _value(signal: Signal, entry: Entry, fixed: str, by: Sequence[str], window: str) -> str:
    keep = ", ".join([*by, *signal.labels])
    if entry.terms[0].type in ("summary", "histogram"):
        parts = [
            _union(
                [
                    _labelled(
                        signal, entry, term, _collapsed(f"rate({_selector(term, suffix, fixed)}[{window}])", entry)
                    )
                    for term in entry.terms
                ]
            )
            for suffix in ("_sum", "_count")
        ]
        return f"sum by ({keep}) ({parts[0]}) / (sum by ({keep}) ({parts[1]}) > 0){_scaled(entry)}"
    if entry.combine == "first":
        expression = " or ".join(
            f"{entry.aggregate} by ({keep}) ({_raw(signal, entry, (term,), fixed)})" for term in entry.terms
        )
        if entry.scale != 1.0 or entry.blocks:
            expression = f"({expression})"
    else:
        expression = f"{entry.aggregate} by ({keep}) ({_raw(signal, entry, entry.terms, fixed)})"
    expression += _scaled(entry)
    if entry.blocks:
        expression += f" * {_block_size(entry.blocks, fixed, by)}"
    return expression


def _raw(signal: Signal, entry: Entry, terms: Sequence[Term], fixed: str) -> str:
    """The series of the terms side by side; terms that differ in name only share a selector where that is safe."""
    alike: dict[str, list[Term]] = {}
    for term in terms:
        alike.setdefault(repr((sorted(term.match.items()), sorted(term.labels.items()))), []).append(term)
    sides: list[str] = []
    for group in alike.values():
        if len(group) == 1 or not (entry.collapse or entry.equals is not None or entry.age):
            vector = _collapsed(_changed(_selector(group[0], "", fixed, [term.name for term in group]), entry), entry)
            sides.append(_labelled(signal, entry, group[0], vector))
            continue
        for number, term in enumerate(group):  # the maximum over ranks drops the name: keep the terms apart
            vector = _collapsed(_changed(_selector(term, "", fixed), entry), entry)
            sides.append(_relabel(_labelled(signal, entry, term, vector), "term", "", str(number)))
    return _union(sides)


def _union(sides: Sequence[str]) -> str:
    return " or ".join(sides)


def _changed(vector: str, entry: Entry) -> str:
    if entry.at_least is not None:
        vector = f"({vector} >= {_number(entry.at_least)})"
    if entry.age:
        return f"time() - {vector}"
    return vector if entry.equals is None else f"{vector} == bool {_number(entry.equals)}"


def _collapsed(vector: str, entry: Entry) -> str:
    return f"max without ({', '.join(entry.collapse)}) ({vector})" if entry.collapse else vector


def _scaled(entry: Entry) -> str:
    return "" if entry.scale == 1.0 else f" * {_number(entry.scale)}"


def _block_size(info: str, fixed: str, by: Sequence[str]) -> str:
    keep = ", ".join([*by, "instance"])
    name = _name_pattern(info)
    sizes = " or ".join(
        f'{{__name__=~"{name}",{fixed + "," if fixed else ""}block_size="{size}"}} * {size}' for size in BLOCK_SIZES
    )
    return f"on ({keep}) group_left () max by ({keep}) ({sizes})"


def _labelled(signal: Signal, entry: Entry, term: Term, vector: str) -> str:
    """Give the series the signal's labels where the raw ones differ; ``engine`` is "0" where nothing says more."""
    for name, label in label_sources(signal, entry, term).items():
        if label.constant:
            vector = _relabel(vector, name, "", label.constant)
        elif label.raw != name or label.pattern != "(.*)":
            vector = _relabel(vector, name, label.raw, label.replacement, label.pattern)
        if name == "engine" and not label.constant:
            vector = _relabel(vector, "engine", "engine", "0", "")
    return vector


def label_sources(signal: Signal, entry: Entry, term: Term) -> dict[str, Label]:
    """Where each label of the signal comes from, those of the target (instance) and ``le`` left out."""
    own = {**entry.labels, **term.labels}
    return {name: own.get(name, Label(raw=name)) for name in signal.labels if name not in ("instance", "le")}


def _relabel(vector: str, target: str, source: str, replacement: str, pattern: str = "") -> str:
    return f"label_replace({vector}, {_quote(target)}, {_quote(replacement)}, {_quote(source)}, {_quote(pattern)})"


def _selector(term: Term, suffix: str, fixed: str, names: Sequence[str] = ()) -> str:
    spelled = "|".join(_name_pattern(name + suffix) for name in names or (term.name,))
    matchers = [fixed] if fixed else []
    for label, value in term.match.items():
        matchers.append(f"{label}=~{_quote(value[1:])}" if value.startswith("~") else f"{label}={_quote(value)}")
    if ":" in spelled or "|" in spelled:
        return "{" + ",".join([f'__name__=~"{spelled}"', *matchers]) + "}"
    return spelled + ("{" + ",".join(matchers) + "}" if matchers else "")


def _name_pattern(name: str) -> str:
    return name.replace(":", "[:_]")


_encode = json.JSONEncoder(ensure_ascii=False).encode


@lru_cache(4096)
def _quote(text: str) -> str:
    return _encode(text)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def spelled(name: str, spelling: Spelling) -> str:
    """A raw name as a scraper stores it."""
    return name if spelling == "colon" else name.replace(":", "_")


def example_series(
    signal: Signal, entry: Entry, target_labels: Mapping[str, str], spelling: Spelling = "colon"
) -> list[ExampleSeries]:
    """Raw series, with the labels of a real scrape, that together yield one series of the signal.

    ``target_labels`` are those of the target (stack, service, role, job, instance) and any labels of the signal
    itself, which become the raw labels they come from (``engine: "1"`` is ``dp_rank="1"`` of SGLang). A summary's
    value is its rate of sum over rate of count: let both grow by the factors. ValueError for a histogram: its series
    depend on the latency, see ``example_histogram``.
    """
    if signal.kind == "histogram":
        raise ValueError(f"{signal.name} is a histogram: use example_histogram")
    own = {name: value for name, value in target_labels.items() if name in signal.labels and name != "instance"}
    target = {name: value for name, value in target_labels.items() if name not in own}
    found: list[ExampleSeries] = []
    chosen = [term for term in entry.terms if _fits(signal, entry, term, own)]
    if entry.combine == "first" or any(term.labels for term in entry.terms):
        chosen = chosen[:1]  # the other terms are alternatives, or series of the signal with other labels
    for term in chosen:
        raw_labels = _raw_labels(signal, entry, term, own)
        for number, example in enumerate(term.examples, 1):
            if example.share:
                labels = {**example.labels, **raw_labels}
                rows = _rows(entry, term, example.share, labels, target, spelling)
                if entry.aggregate == "count":
                    rows = [row._replace(factor=0.0, offset=1.0, from_count=number) for row in rows]
                found.extend(rows)
    if entry.blocks:
        info = {**target, "block_size": "16"}
        found = [row._replace(factor=row.factor / 16) for row in found]
        found.append(ExampleSeries(_series(spelled(entry.blocks, spelling), info), 0.0, 1.0))
    return found


def _rows(
    entry: Entry, term: Term, share: float, labels: Mapping[str, str], target: Mapping[str, str], spelling: Spelling
) -> list[ExampleSeries]:
    name = spelled(term.name, spelling)
    series = _series(name, {**labels, **target})
    if term.type == "summary":
        return [
            ExampleSeries(_series(name + "_sum", {**labels, **target}), share / entry.scale),
            ExampleSeries(_series(name + "_count", {**labels, **target}), 0.0, 1.0),
        ]
    if entry.age:
        return [ExampleSeries(series, -1.0, 0.0, clock=True)]
    if entry.equals is not None:
        # the state that counts as 1 is `equals`; the other state of a two-state metric is 1 - equals
        return [ExampleSeries(series, 2 * entry.equals - 1, 1 - entry.equals)]
    return [ExampleSeries(series, share / entry.scale)]


def example_histogram(
    signal: Signal, entry: Entry, value: float, target_labels: Mapping[str, str], spelling: Spelling = "colon"
) -> list[ExampleSeries]:
    """Counters of a histogram that sees only ``value`` (in the signal's unit); factors are growth per observation."""
    term = entry.terms[0]
    name = spelled(term.name, spelling)
    raw = value / entry.scale
    labels = {**term.examples[0].labels, **target_labels}
    infinite = _series(name + "_bucket", {**labels, "le": "+Inf"})
    rows = [
        ExampleSeries(infinite.replace('le="+Inf"', f'le="{bound}"'), float(raw <= bound)) for bound in entry.buckets
    ]
    rows.append(ExampleSeries(infinite, 1.0))
    rows.append(ExampleSeries(_series(name + "_sum", labels), raw))
    rows.append(ExampleSeries(_series(name + "_count", labels), 1.0))
    return rows


def _fits(signal: Signal, entry: Entry, term: Term, own: Mapping[str, str]) -> bool:
    """False when the term can never have these labels: another constant, or another form (``xid_$1``)."""
    for name, value in own.items():
        label = label_sources(signal, entry, term)[name]
        before, _, after = label.replacement.partition("$1")
        if label.constant and label.constant != value and name != "engine":
            return False
        if not label.constant and not (value.startswith(before) and value.endswith(after)):
            return False
    return True


def _raw_labels(signal: Signal, entry: Entry, term: Term, own: Mapping[str, str]) -> dict[str, str]:
    """Raw labels that become the labels ``own`` of the signal."""
    sources = label_sources(signal, entry, term)
    found = {}
    for name, value in own.items():
        label = sources[name]
        if label.constant:
            continue
        before, _, after = label.replacement.partition("$1")
        inner = value.removeprefix(before).removesuffix(after)
        found[label.raw] = label.pattern.replace("(.*)", inner).replace("(.+)", inner)
    return found


def _series(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f"{key}={_quote(value)}" for key, value in sorted(labels.items()) if value) + "}"
