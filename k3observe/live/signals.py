"""The state of every signal in one exposition, with the reason and what to do.

Alive, unused (it waits for its first event), untold (a property of the device: nothing to mend), missing or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from k3observe.catalogue import Catalogue, Entry, Gap, Signal, Source, Term, Text, Version
from k3observe.catalogue.history import history
from k3observe.catalogue.reading import count, matches, read
from k3observe.live.detect import Identity
from k3observe.live.exposition import Exposition, Sample

State = Literal["alive", "unused", "untold", "missing", "wrong"]

STALE_SECONDS = 300.0
"""Prometheus forgets a series after five minutes; an older timestamp is never seen."""

_UNIT_LIMITS = {"ratio": (0.0, 1.0), "bool": (0.0, 1.0), "bytes": (0.0, math.inf), "count": (0.0, math.inf),
                "celsius": (-50.0, 200.0), "watts": (0.0, 20_000.0), "seconds": (0.0, math.inf)}  # fmt: skip
_ABOVE_ONE = ("expert_load_variance", "expert_rank_load")
_READ_OK = "k3_accelerator_read_success"
_SMALLEST_DEVICE = 2.0**30
"""A total memory below 1 GiB is not in bytes."""


@dataclass(frozen=True)
class Finding:
    """A signal in a source. ``value`` is the sum of a counter, the mean of a histogram, the largest of a gauge."""

    signal: str
    source: str
    state: State
    metric: str = ""
    series: int = 0
    value: float | None = None
    reason: Text | None = None
    fix: Text | None = None

    @property
    def usable(self) -> bool:
        """True when a rule on the signal works: it is alive, or waits for its first event."""
        return self.state == "alive" or (self.state == "unused" and self.fix is None)


class Examination:
    """One exposition with its identity, and what the configuration says of its service, if there is one."""

    def __init__(
        self,
        exposition: Exposition,
        identity: Identity,
        catalogue: Catalogue,
        now: float,
        facts: Mapping[str, object] | None = None,
        configured: Version | None = None,
    ) -> None:
        self.exposition = exposition
        self.identity = identity
        self.catalogue = catalogue
        self.source: Source = catalogue.sources[identity.source]
        self.now = now
        self._facts = facts or {}
        self._configured = configured
        self._busy = self._has_traffic()

    def findings(self) -> Iterator[Finding]:
        """Every signal that the source has an entry or a known gap for."""
        told = {entry.signal for entry in self.source.entries} | {gap.signal for gap in self.source.gaps}
        for signal in self.catalogue.signals.values():
            if signal.name in told:
                yield self._finding(signal)

    def _versions(self) -> list[Version | None]:
        """Versions whose rules may be in force, the likeliest first: the configured one alone, else the range."""
        if self._configured is not None:
            return [self._configured]
        newest, oldest = self.identity.newest, self.identity.oldest
        table = history(self.source.history)
        if newest is None or oldest is None or table is None:
            return [newest]
        return [newest, *(release for release in reversed(table.releases) if oldest <= release < newest)]

    def _finding(self, signal: Signal) -> Finding:
        candidates: list[Entry] = []
        for version in self._versions():
            for entry in self.catalogue.candidates(self.source.name, signal.name, version):
                if entry not in candidates and entry.when.get("role") in (None, self._facts.get("role")):
                    candidates.append(entry)
        present = next((entry for entry in candidates if self._series(entry)), None)
        if present is not None:
            return self._present(signal, present)
        return self._absent(signal, candidates)

    def _series(self, entry: Entry) -> list[tuple[Term, Sample]]:
        return [
            (term, sample)
            for term in entry.terms
            for sample in self.exposition.samples.get(term.name + _COUNTED.get(term.type, ""), ())
            if all(matches(sample.labels.get(label, ""), wanted) for label, wanted in term.match.items())
        ]

    def _rows(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        return [(sample.labels, sample.value) for sample in self.exposition.samples.get(name, ())]

    def _present(self, signal: Signal, entry: Entry) -> Finding:
        series = self._series(entry)
        values = list(read(signal, entry, self._rows, self.now).values())
        value = _told(signal, values)
        wrong = self._wrong(signal, entry, series, values)
        found = Finding(signal.name, self.exposition.source, "alive", entry.metric, len(series), value)
        if wrong:
            return _with(found, "wrong", *wrong)
        events = count(signal, entry, self._rows) if entry.terms[0].type in _COUNTED else value
        if not events and (signal.kind != "gauge" or entry.terms[0].type in _COUNTED):
            return self._unused(found, entry)
        return found

    def _unused(self, found: Finding, entry: Entry) -> Finding:
        own = entry.enable if entry.enable != self.source.enable else ""
        if own and self._busy:
            return _with(found, "unused", Text("0 although there is traffic", "有流量但始终为 0"),
                         Text(f"add {own}", f"加上 {own}"))  # fmt: skip
        return _with(found, "unused", Text("0 since the start", "自启动以来为 0"), None)

    def _has_traffic(self) -> bool:
        for name in ("prompt_tokens", "requests_finished"):
            for entry in self.source.entries:
                if entry.signal == name and any(sample.value > 0 for _, sample in self._series(entry)):
                    return True
        return False

    def _absent(self, signal: Signal, candidates: list[Entry]) -> Finding:
        found = Finding(signal.name, self.exposition.source, "missing")
        other = self._under_another_name(signal, candidates)
        if other is not None:
            return _with(_at(found, other), "missing", *self._renamed(other, candidates))
        if not candidates:
            gap = self.catalogue.entry(self.source.name, signal.name, self._versions()[0], {})
            assert isinstance(gap, Gap) or gap.when
            if isinstance(gap, Gap):
                return _with(found, "missing", gap.reason, gap.fix)
            return _with(found, "missing", Text(f"needs {gap.enable}", f"需要 {gap.enable}"), None)
        entry = candidates[0]
        found = _at(found, entry)
        own = entry.enable if entry.enable != self.source.enable else ""
        if self.identity.rust_frontend and "rust_frontend" in entry.unless:
            reason = Text("vLLM's Rust frontend leaves it out", "vLLM 的 Rust 前端不提供该指标")
            return _with(found, "missing", reason, Text(f"set {entry.otherwise}", f"设置 {entry.otherwise}"))
        if own and "prefix_caching" not in entry.unless and not self._switched_on(entry):
            reason = Text("not exported unless it is switched on", "未开启时不导出")
            return _with(found, "missing", reason, Text(f"add {own}", f"加上 {own}"))
        if entry.lazy:
            return _with(found, "unused", Text("no series before the first event", "首次事件之前没有序列"), None)
        if own and self._switched_on(entry):
            if not signal.name.startswith("accelerator"):
                return _with(found, "missing", Text("its collector runs and has no reading of it yet",
                                                    "采集器已运行，但尚无读数"), None)  # fmt: skip
            if any(value == 0 for _, value in self._rows(_READ_OK)):
                return _with(found, "missing", Text(f"a device does not answer ({_READ_OK} is 0)",
                                                    f"有设备没有响应（{_READ_OK} 为 0）"), None)  # fmt: skip
            return _with(found, "untold", Text("not told by this device", "该设备不提供"), None)
        title = f"{self.source.title} {self._versions()[0] or ''}".rstrip()
        fix = Text(f"give the output of {self.source.title} itself, and check that its metrics are on",
                   f"请提供 {self.source.title} 自身的输出，并确认其指标已开启")  # fmt: skip
        return _with(found, "missing", Text(f"{title} has {entry.metric}, this exposition does not",
                                            f"{title} 应有 {entry.metric}，但此处没有"), fix)  # fmt: skip

    def _switched_on(self, entry: Entry) -> bool:
        """Whether a collector of the sidecar runs, as other signals of it are there."""
        return bool(entry.when) and self.source.kind == "exporter" and any(
            other.when == entry.when and self._series(other) for other in self.source.entries)

    def _under_another_name(self, signal: Signal, candidates: list[Entry]) -> Entry | None:
        for entry in self.source.entries:
            if entry.signal != signal.name or entry in candidates or not self._series(entry):
                continue
            if entry.when.get("role") in (None, self._facts.get("role")):
                return entry
        return None

    def _renamed(self, other: Entry, candidates: list[Entry]) -> tuple[Text, Text | None]:
        title = f"{self.source.title} {self._versions()[0]}"
        wanted = candidates[0].metric if candidates else ""
        reason = Text(
            f"{title} has {wanted or 'no metric for it'}; here is {other.metric}, of versions {other.versions}",
            f"{title} {'使用 ' + wanted if wanted else '没有该指标'}；此处是 {other.versions} 版本的 {other.metric}",
        )
        newest = self.identity.newest
        if newest is None or newest == self._configured:
            return reason, None
        return reason, Text(f"set the engine's version to {newest}", f"把引擎版本设为 {newest}")

    def _wrong(self, signal: Signal, entry: Entry, series: list[tuple[Term, Sample]],
               values: list[float]) -> tuple[Text, Text | None] | None:  # fmt: skip
        for term in entry.terms:
            kind = self.exposition.types.get(term.name, "untyped")
            if kind not in (term.type, "untyped", "unknown") and term.name + _COUNTED.get(term.type, "") in (
                self.exposition.samples
            ):
                return (Text(f"{term.name} is a {kind}, expected a {term.type}",
                             f"{term.name} 的类型是 {kind}，应为 {term.type}"), None)  # fmt: skip
        if any(math.isnan(sample.value) for _, sample in series):
            return Text("NaN: it compares false in every alert", "值为 NaN：任何告警比较都不成立"), None
        names = [(term.name, *sorted(sample.labels.items())) for term, sample in series if not term.labels]
        if len(set(names)) < len(names):
            return (Text("a series stands twice: Prometheus keeps one of them",
                         "序列重复：Prometheus 只保留其中之一"), None)  # fmt: skip
        stale = self._stale(series)
        if stale is not None:
            return (Text(f"samples carry a timestamp {stale:.0f} s old: Prometheus drops them after 300 s",
                         f"样本自带时间戳，已过期 {stale:.0f} 秒：超过 300 秒 Prometheus 不再返回"),
                    Text("scrape with honor_timestamps: false", "采集时设置 honor_timestamps: false"))  # fmt: skip
        if entry.terms[0].type == "histogram" and not self._has_infinity(entry.terms[0].name):
            return Text("the buckets have no +Inf", "分桶缺少 +Inf"), None
        return _out_of_range(signal, values)

    def _stale(self, series: list[tuple[Term, Sample]]) -> float | None:
        stamps = [sample.timestamp for _, sample in series if sample.timestamp is not None]
        if not stamps:
            return None
        newest = self.now
        if not self.exposition.url:  # a capture is old as a whole
            newest = max(s.timestamp or 0.0 for rows in self.exposition.samples.values() for s in rows)
        age = newest - min(stamps)
        return age if age > STALE_SECONDS else None

    def _has_infinity(self, name: str) -> bool:
        buckets = self.exposition.samples.get(name + "_bucket", ())
        return not buckets or any(sample.labels.get("le") in ("+Inf", "inf", "Inf") for sample in buckets)


_COUNTED = {"histogram": "_count", "summary": "_count"}


def _out_of_range(signal: Signal, values: list[float]) -> tuple[Text, Text | None] | None:
    low, high = (0.0, math.inf) if signal.kind != "gauge" else _UNIT_LIMITS.get(signal.unit, (-math.inf, math.inf))
    if signal.name.startswith(_ABOVE_ONE):
        high = math.inf
    if signal.name == "accelerator_memory_total":
        low = _SMALLEST_DEVICE
    for value in values:
        if not low <= value <= high * (1 + 1e-6):
            percent = signal.unit == "ratio" and 1 < value <= 100
            hint = (" (a percentage?)", "（是百分数？）") if percent else ("", "")
            span = f"{low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
            zh = f"{low:g} 到 {high:g}" if high < math.inf else f"至少 {low:g}"
            return Text(f"{value:g} is outside of {span} {signal.unit}{hint[0]}",
                        f"{value:g} 超出范围（{zh} {signal.unit}）{hint[1]}"), None  # fmt: skip
    return None


def _told(signal: Signal, values: list[float]) -> float | None:
    if not values:
        return None
    if signal.kind == "counter":
        return sum(values)
    return max(values)


def _at(found: Finding, entry: Entry) -> Finding:
    return Finding(found.signal, found.source, found.state, entry.metric)


def _with(found: Finding, state: State, reason: Text, fix: Text | None) -> Finding:
    return Finding(found.signal, found.source, state, found.metric, found.series, found.value, reason, fix)
