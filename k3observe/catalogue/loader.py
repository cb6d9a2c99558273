"""Read the catalogue's files, ours and the user's, into the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from k3observe.catalogue import values
from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.document import Node, read
from k3observe.catalogue.model import (
    Aggregate,
    Entry,
    Evidence,
    Example,
    Gap,
    Kind,
    Level,
    Mark,
    RawType,
    Signal,
    Source,
    Term,
    Text,
)
from k3observe.config.errors import did_you_mean

FOLDER = Path(__file__).parent
_SOURCE_KEYS = (
    "name", "title", "kind", "job", "port", "metrics_path", "prefix", "evidence", "labels", "collapse", "example",
    "history", "extends", "buckets", "unless", "enable", "marks", "signals",
)  # fmt: skip
_TERM_KEYS = ("metric", "type", "match", "labels", "examples")
_ENTRY_KEYS = (
    *_TERM_KEYS, "versions", "terms", "combine", "scale", "aggregate", "collapse", "equals", "age", "at_least",
    "blocks", "lazy", "includes", "example", "when", "unless", "enable", "otherwise", "misleads", "evidence",
    "reference", "buckets",
)  # fmt: skip
_GAP_KEYS = ("gap", "fix", "versions")
_EVIDENCES: tuple[Evidence, ...] = ("exposition", "documentation")
_BLANK = Source(
    name="", title="", kind="engine", job="k3-engine", port=8000, metrics_path="/metrics", prefix="",
    evidence="documentation", labels={}, example={}, entries=(), gaps=())
"""What a source is that neither says it nor extends another."""
_METRIC_NAME = re.compile(r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")


@dataclass(frozen=True)
class _Common:
    """What a file says once for all its entries."""

    collapse: tuple[str, ...]
    buckets: Mapping[str, tuple[float, ...]]
    unless: Mapping[str, str]
    enable: str
    signals: Mapping[str, Signal]


def load(extra: Sequence[Path] = ()) -> Catalogue:
    """The shipped catalogue, with the user's files over it: a signal listed there replaces ours of that source.

    Raises ConfigError, whose text reads ``file:line: field: what is wrong``.
    """
    return _load(tuple(Path(path) for path in extra)) if extra else _shipped()


@lru_cache(maxsize=1)
def _shipped() -> Catalogue:
    return _load(())


def _load(extra: tuple[Path, ...]) -> Catalogue:
    signals = _signals(read(FOLDER / "signals.yaml"))
    shipped = [read(path) for path in sorted((FOLDER / "sources").glob("*.yaml"))]
    shipped.sort(key=lambda document: "extends" in document.mapping())
    sources: dict[str, Source] = {}
    for document in (*shipped, *map(read, extra)):
        source = _source(document, signals, sources)
        sources[source.name] = source
    return Catalogue(signals, sources)


def _signals(document: Node) -> dict[str, Signal]:
    found: dict[str, Signal] = {}
    for name, node in document.mapping().items():
        fields = node.mapping(("kind", "series", "unit", "labels", "level", "en", "zh-CN", "derived_from"))
        kinds: tuple[Kind, ...] = ("gauge", "counter", "histogram")
        levels: tuple[Level, ...] = ("engine", "service", "device", "instance")
        found[name] = Signal(
            name=name,
            kind=values.choice(values.need(node, "kind"), kinds),
            series=values.need(node, "series").text(),
            unit=values.need(node, "unit").text(),
            labels=values.texts(fields.get("labels")),
            level=values.choice(values.need(node, "level"), levels),
            meaning=Text(values.need(node, "en").text(), values.need(node, "zh-CN").text()),
            derived_from=values.texts(fields.get("derived_from")),
        )
    for name, signal in found.items():
        for origin in signal.derived_from:
            if origin not in found:
                raise document.mapping()[name].error("derived_from names no signal", value=origin)
    return found


def _source(document: Node, signals: Mapping[str, Signal], known: Mapping[str, Source]) -> Source:
    fields = document.mapping(_SOURCE_KEYS)
    name = values.need(document, "name").text()
    base = known.get(name, _BLANK)
    if "extends" in fields:
        extends = fields["extends"].text()
        if extends not in known:
            raise fields["extends"].error("names no source", did_you_mean(extends, known), extends)
        base = known[extends]
    text = values.Texts(fields)
    kinds: tuple[Literal["engine"], Literal["exporter"]] = ("engine", "exporter")
    shell = Source(
        name=name,
        title=text.get("title", base.title or name),
        kind=values.choice(fields["kind"], kinds) if "kind" in fields else base.kind,
        job=text.get("job", base.job),
        port=values.port(fields["port"]) if "port" in fields else base.port,
        metrics_path=text.get("metrics_path", base.metrics_path),
        prefix=text.get("prefix", base.prefix),
        evidence=values.choice(fields["evidence"], _EVIDENCES) if "evidence" in fields else base.evidence,
        labels=values.labels(fields["labels"]) if "labels" in fields else base.labels,
        example=values.strings(fields["example"]) if "example" in fields else base.example,
        history=text.get("history", base.history),
        extends=text.get("extends", ""),
        marks=tuple(map(_mark, fields["marks"].items())) if "marks" in fields else base.marks,
        enable=text.get("enable", base.enable),
        entries=(),
        gaps=(),
    )
    common = _Common(
        collapse=values.texts(fields.get("collapse")),
        buckets={key: values.bounds(item) for key, item in fields["buckets"].mapping().items()}
        if "buckets" in fields
        else {},
        unless=values.strings(fields["unless"]) if "unless" in fields else {},
        enable=text.get("enable", ""),
        signals=signals,
    )
    entries: list[Entry] = []
    gaps: list[Gap] = []
    listed = fields["signals"].mapping() if "signals" in fields else {}
    for signal_name, node in listed.items():
        if signal_name not in signals:
            raise node.error("is no signal", did_you_mean(signal_name, signals))
        signal = signals[signal_name]
        if signal.derived_from:
            raise node.error(f"is computed from {', '.join(signal.derived_from)}", "give those instead")
        for item in node.items():
            if "gap" in item.mapping():
                gaps.append(_gap(item, name, signal_name))
            else:
                entries.append(_entry(item, shell, signal, common))
    entries += [
        replace(entry, source=name, evidence=_inherited(entry, shell, base))
        for entry in base.entries
        if entry.signal not in listed
    ]
    gaps += [
        replace(gap, source=name, reason=_of(gap.reason, base, shell), fix=gap.fix and _of(gap.fix, base, shell))
        for gap in base.gaps
        if gap.signal not in listed
    ]
    return replace(shell, entries=tuple(entries), gaps=tuple(gaps))


def _mark(node: Node) -> Mark:
    fields = node.mapping(("metric", "label", "value", "since", "certain"))
    return Mark(
        metric=values.need(node, "metric").text(),
        label=values.need(node, "label").text(),
        since=values.version(values.need(node, "since")),
        value=fields["value"].text() if "value" in fields else "",
        certain=values.version(fields["certain"]) if "certain" in fields else None,
    )


def _inherited(entry: Entry, source: Source, base: Source) -> Evidence:
    """An inherited entry was seen on its own engine only, unless the source overrides that very engine."""
    return entry.evidence if source.name == base.name else source.evidence


def _of(text: Text, base: Source, source: Source) -> Text:
    """A sentence on an engine, said of the one that extends it."""
    title = re.compile(rf"(?<![\w-]){re.escape(base.title)}(?![\w-])") if base.title else None
    if title is None or base.title == source.title:
        return text
    return Text(title.sub(lambda _: source.title, text.en), title.sub(lambda _: source.title, text.zh))


def _gap(node: Node, source: str, signal: str) -> Gap:
    fields = node.mapping(_GAP_KEYS)
    return Gap(
        source,
        signal,
        values.version_range(fields.get("versions")),
        values.sentence(fields["gap"]),
        values.sentence(fields["fix"]) if "fix" in fields else None,
    )


def _entry(node: Node, source: Source, signal: Signal, common: _Common) -> Entry:
    fields = node.mapping(_ENTRY_KEYS)
    if ("metric" in fields) == ("terms" in fields):
        raise node.error("needs either metric or terms")
    base = values.strings(fields["example"]) if "example" in fields else source.example
    terms = (
        [_term(term, signal, base) for term in fields["terms"].items()]
        if "terms" in fields
        else [_term(node, signal, base, labels_of_entry=True)]
    )
    if not terms:
        raise node.error("names no raw metric", "add one under terms:")
    text = values.Texts(fields)
    combine = values.choice(fields["combine"], ("union", "first")) if "combine" in fields else "union"
    aggregates: tuple[Aggregate, ...] = ("max", "min", "sum", "count")
    scale = fields["scale"].number() if "scale" in fields else 1.0
    if scale == 0:
        raise fields["scale"].error("must not be 0")
    if scale != 1 and signal.kind == "histogram":
        raise fields["scale"].error(
            "cannot scale a histogram: its buckets keep the engine's unit", "export it in the unit of the signal")
    labels = {**source.labels, **(values.labels(fields["labels"]) if "labels" in fields else {})}
    return Entry(
        source=source.name,
        signal=signal.name,
        versions=values.version_range(fields.get("versions")),
        terms=tuple(terms),
        combine="first" if combine == "first" else "union",
        scale=scale,
        aggregate=values.choice(fields["aggregate"], aggregates)
        if "aggregate" in fields
        else ("max" if signal.kind == "gauge" else "sum"),
        labels={name: label for name, label in labels.items() if name in signal.labels},
        collapse=values.texts(fields["collapse"]) if "collapse" in fields else common.collapse,
        equals=fields["equals"].number() if "equals" in fields else None,
        age=fields["age"].boolean() if "age" in fields else False,
        at_least=fields["at_least"].number() if "at_least" in fields else None,
        blocks=text.get("blocks", ""),
        lazy=fields["lazy"].boolean() if "lazy" in fields else False,
        includes=values.signal_names(fields["includes"], common.signals) if "includes" in fields else (),
        when=values.strings(fields["when"]) if "when" in fields else {},
        unless={**common.unless, **(values.strings(fields["unless"]) if "unless" in fields else {})},
        enable=text.get("enable", common.enable),
        otherwise=text.get("otherwise", ""),
        misleads=values.sentence(fields["misleads"]) if "misleads" in fields else None,
        evidence=values.choice(fields["evidence"], _EVIDENCES) if "evidence" in fields else source.evidence,
        reference=text.get("reference", ""),
        buckets=values.buckets(fields["buckets"], common.buckets) if "buckets" in fields else (),
    )


def _term(node: Node, signal: Signal, base: Mapping[str, str], labels_of_entry: bool = False) -> Term:
    fields = node.mapping() if labels_of_entry else node.mapping(_TERM_KEYS)
    metric = values.need(node, "metric")
    if not _METRIC_NAME.match(metric.text()):
        raise metric.error("is no metric name", value=metric.text())
    types: tuple[RawType, ...] = ("gauge", "counter", "histogram", "summary")
    match = values.strings(fields["match"]) if "match" in fields else {}
    for label, value in match.items():
        if value.startswith("~"):
            try:
                re.compile(value[1:])
            except re.error as error:
                raise fields["match"].error(f"{label} has no regular expression", str(error), value[1:]) from None
    return Term(
        name=metric.text(),
        type=values.choice(fields["type"], types) if "type" in fields else signal.kind,
        match=match,
        labels=values.labels(fields["labels"]) if "labels" in fields and not labels_of_entry else {},
        examples=tuple(_example(item, base) for item in fields["examples"].items())
        if "examples" in fields
        else (Example({**base, **{name: value for name, value in match.items() if value and value[0] != "~"}}),),
    )


def _example(node: Node, base: Mapping[str, str]) -> Example:
    fields = dict(node.mapping())
    share = fields.pop("share").number() if "share" in fields else 1.0
    return Example({**base, **{name: value.text() for name, value in fields.items()}}, share)
