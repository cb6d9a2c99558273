"""What the catalogue holds: signals, the entries that say how a source exposes them, and the gaps where it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from k3observe.catalogue.version import Version, VersionRange

Kind = Literal["gauge", "counter", "histogram"]
RawType = Literal["gauge", "counter", "histogram", "summary"]
Level = Literal["engine", "service", "device", "instance"]
Aggregate = Literal["max", "min", "sum", "count"]
Evidence = Literal["exposition", "documentation"]


@dataclass(frozen=True)
class Text:
    """A sentence in the two languages of the product."""

    en: str
    zh: str

    def get(self, language: str) -> str:
        """The sentence in ``language`` ("en", "zh-CN")."""
        return self.zh if language.startswith("zh") else self.en


@dataclass(frozen=True)
class Signal:
    """What an SRE watches. ``series`` is its recorded name; of a histogram, the name before ``_bucket:rate5m``.

    ``labels`` stand beside the labels of the service (stack, service, role). ``derived_from`` names the signals of
    which a recording rule makes it; such a signal has no entries of its own.
    """

    name: str
    kind: Kind
    series: str
    unit: str
    labels: tuple[str, ...]
    level: Level
    meaning: Text
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class Label:
    """Where a label of a signal comes from: a constant, or a raw label of which ``pattern`` must match the whole.

    ``replacement`` is what becomes of it ("xid_$1"), as in Prometheus' label_replace.
    """

    raw: str = ""
    constant: str = ""
    pattern: str = "(.*)"
    replacement: str = "$1"


@dataclass(frozen=True)
class Example:
    """Labels of one series of a real scrape, without the target's, and its share of the signal's value."""

    labels: Mapping[str, str]
    share: float = 1.0


@dataclass(frozen=True)
class Term:
    """One raw metric family as it is scraped: a counter's name ends in ``_total``, a histogram's has no suffix.

    ``match`` selects among its series: a value, or "~" and a regular expression ("" means without the label).
    """

    name: str
    type: RawType
    match: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, Label] = field(default_factory=dict)
    examples: tuple[Example, ...] = (Example({}),)

    @property
    def sample(self) -> str:
        """The name of a sample that shows the family is there."""
        return self.name + {"histogram": "_bucket", "summary": "_count"}.get(self.type, "")


@dataclass(frozen=True)
class Entry:
    """How a source exposes a signal in a range of versions.

    The terms are alternatives of one value, the first that has series wins (``combine="first"``), or parts of it that
    stand side by side or are aggregated (``"union"``). ``collapse`` names raw labels of ranks that repeat one value:
    the maximum over them is taken before anything is added up. ``scale`` converts to the signal's unit; ``equals``
    turns a state into 1 (equal) or 0; ``age`` turns a Unix time into seconds since then; raw values below
    ``at_least`` are failed reads and dropped; ``blocks`` names the info metric whose ``block_size`` label converts
    blocks into tokens. ``lazy`` series appear with the first event. ``includes`` names signals that are a part of this
    one's value and share its raw metric: a series made up for a test carries only what remains when theirs are taken
    off. ``when`` lists facts of the configuration that must hold, ``unless`` those that must not;
    ``enable`` is the flag that switches the metric on, ``otherwise`` the way out of an ``unless``.
    """

    source: str
    signal: str
    versions: VersionRange
    terms: tuple[Term, ...]
    combine: Literal["union", "first"] = "union"
    scale: float = 1.0
    aggregate: Aggregate = "max"
    labels: Mapping[str, Label] = field(default_factory=dict)
    collapse: tuple[str, ...] = ()
    equals: float | None = None
    age: bool = False
    at_least: float | None = None
    blocks: str = ""
    lazy: bool = False
    includes: tuple[str, ...] = ()
    when: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    enable: str = ""
    otherwise: str = ""
    misleads: Text | None = None
    evidence: Evidence = "exposition"
    reference: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def metrics(self) -> Mapping[str, RawType]:
        """Raw family names and types that the expression reads."""
        found: dict[str, RawType] = {term.name: term.type for term in self.terms}
        if self.blocks:
            found[self.blocks] = "gauge"
        return found

    @property
    def metric(self) -> str:
        """The raw sample name that carries the signal; of alternatives the last, which all releases have."""
        return self.terms[-1 if self.combine == "first" else 0].sample


@dataclass(frozen=True)
class Gap:
    """A signal that a source cannot give in these versions: why, and what would give it."""

    source: str
    signal: str
    versions: VersionRange
    reason: Text
    fix: Text | None = None


@dataclass(frozen=True)
class Mark:
    """A label (with ``value``, if given) that dates an exposition.

    Seen, the version is at least ``since``; not seen on a metric that is there, it is below ``certain`` (if given).
    """

    metric: str
    label: str
    since: Version
    value: str = ""
    certain: Version | None = None


@dataclass(frozen=True)
class Source:
    """An engine or exporter. ``prefix`` ("vllm:") also appears with an underscore, as some scrapers store it.

    ``labels`` are the raw labels that every series has in ``example``; ``history`` names the table of all its metrics.
    """

    name: str
    title: str
    kind: Literal["engine", "exporter"]
    job: str
    port: int
    metrics_path: str
    prefix: str
    evidence: Evidence
    labels: Mapping[str, Label]
    example: Mapping[str, str]
    entries: tuple[Entry, ...]
    gaps: tuple[Gap, ...]
    history: str = ""
    extends: str = ""
    marks: tuple[Mark, ...] = ()
    enable: str = ""
    """What makes the source expose metrics at all; entries without a switch of their own have it too."""
