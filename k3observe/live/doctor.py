"""Expositions, and a plan if there is one -> which signals live, which alerts are armed, and what would mend the rest.

Pure: what was read comes in, a report goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlsplit

from k3observe.catalogue import Catalogue, Gap, Text, Version
from k3observe.dashboards.model import Board
from k3observe.live.detect import Identity
from k3observe.live.exposition import Exposition
from k3observe.live.signals import Examination, Finding
from k3observe.plan import Plan
from k3observe.remedies import Remedy, remedies, wants
from k3observe.rules import Pack
from k3observe.versions import newer


@dataclass(frozen=True)
class Reading:
    """A source that was read and recognised; ``asked`` is the version the user says it has."""

    exposition: Exposition
    identity: Identity
    asked: Version | None = None

    @property
    def span(self) -> tuple[Version | None, Version | None]:
        """The oldest and the newest version it can be."""
        return (self.asked, self.asked) if self.asked else (self.identity.oldest, self.identity.newest)


class Why(NamedTuple):
    """Why a signal is no good, and what mends it; ``untold``: the device does not have it, which nothing need mend."""

    reason: Text
    fix: Text | None
    untold: bool = False


@dataclass(frozen=True)
class AlertFinding:
    """An alert of a service (None without a configuration). ``planned`` is False for one that is not rendered.

    ``wants`` is all that it lacks, None standing for what nothing gives; ``reason`` and ``fix`` are the first of it.
    ``untold``: only what this device does not have; an alert that has other terms is armed, and says so in ``reason``.
    """

    alert: str
    service: str | None
    armed: bool
    planned: bool = True
    reason: Text | None = None
    fix: Text | None = None
    wants: tuple[Text | None, ...] = ()
    untold: bool = False

    @property
    def state(self) -> str:
        """armed, untold or blind."""
        return "armed" if self.armed else "untold" if self.untold else "blind"


@dataclass(frozen=True)
class PanelFinding:
    """A panel of a dashboard, and why it is empty if it is."""

    board: Text
    panel: Text
    armed: bool
    reason: Text | None = None
    fix: Text | None = None


@dataclass(frozen=True)
class Report:
    """What was found, in the order of the sources, of the catalogue and of the rules."""

    readings: tuple[Reading, ...]
    signals: tuple[Finding, ...]
    alerts: tuple[AlertFinding, ...]
    panels: tuple[PanelFinding, ...] = ()
    notes: tuple[Text, ...] = ()

    @property
    def healthy(self) -> bool:
        """True when every planned alert is armed, but for what the devices do not have."""
        return all(alert.armed or alert.untold for alert in self.alerts if alert.planned)

    @property
    def remedies(self) -> list[Remedy]:
        """The changes that arm what is blind, by service, the most helpful first."""
        return remedies((alert.service, alert.alert, alert.wants) for alert in self.alerts if alert.wants)


def examine(
    readings: Sequence[Reading],
    catalogue: Catalogue,
    pack: Pack,
    now: float,
    plan: Plan | None = None,
    boards: Sequence[Board] = (),
) -> Report:
    """Find the state of every signal, alert and panel of ``boards``. ``now`` is Unix time."""
    found: list[tuple[Reading, list[str], Finding]] = []
    readings = [_as_configured(reading, catalogue, plan) for reading in readings]
    for reading in readings:
        services = _services(reading, catalogue, plan)
        facts, configured = _configured(reading, services, catalogue, plan)
        exam = Examination(reading.exposition, reading.identity, catalogue, now, facts, configured)
        found += [(reading, services, row) for row in (*exam.findings(), *_of_the_scrape(reading, catalogue))]
    alerts = _planned(found, plan) if plan else _shipped(found, catalogue, pack)
    signals = [row for _, _, row in found]
    signals += _derived(signals, catalogue, pack)
    signals += _nowhere(signals, readings, catalogue)
    panels = _panels(found, catalogue, pack, plan, boards)
    notes = _notes(readings, catalogue, plan)
    return Report(tuple(readings), tuple(signals), tuple(alerts), tuple(panels), tuple(notes))


def _as_configured(reading: Reading, catalogue: Catalogue, plan: Plan | None) -> Reading:
    """A fork (vLLM-Ascend) is recognised as what it extends; where the configuration runs only the fork, it is that."""
    engines = {service.engine.name for service in plan.services.values()} if plan else set()
    forks = {name for name in engines if catalogue.sources[name].extends == reading.identity.source}
    if reading.identity.source in engines or len(forks) != 1:
        return reading
    return replace(reading, identity=replace(reading.identity, source=forks.pop()))


def _services(reading: Reading, catalogue: Catalogue, plan: Plan | None) -> list[str]:
    """Services of the configuration that a source belongs to: by address, else by engine; exporters serve all."""
    if plan is None:
        return []
    if catalogue.sources[reading.identity.source].kind == "exporter":
        return list(plan.services)
    alike = [name for name, service in plan.services.items() if service.engine.name == reading.identity.source]
    address = urlsplit(reading.exposition.url).netloc
    here = [name for name in alike if address and address in map(str, plan.services[name].targets)]
    return here or [name for name in alike if _may_be(reading, plan.services[name].engine.version)] or alike


def _may_be(reading: Reading, configured: str | None) -> bool:
    """Whether a source may be of the minor release that a service is said to run."""
    oldest, newest = reading.span
    if configured is None or oldest is None or newest is None:
        return True
    return oldest.numbers[:2] <= Version.parse(configured).numbers[:2] <= newest.numbers[:2]


def _configured(reading: Reading, services: Sequence[str], catalogue: Catalogue, plan: Plan | None
                ) -> tuple[Mapping[str, object], Version | None]:  # fmt: skip
    if plan is None or not services or catalogue.sources[reading.identity.source].kind == "exporter":
        return {}, reading.asked
    service = plan.services[services[0]]
    version = Version.parse(service.engine.version) if service.engine.version else None
    return plan.facts[services[0]], reading.asked or version


def _of_the_scrape(reading: Reading, catalogue: Catalogue) -> list[Finding]:
    """``up`` is Prometheus' own: an exposition that could be read is its proof."""
    kind = catalogue.sources[reading.identity.source].kind
    name = "engine_up" if kind == "engine" else "exporter_up"
    return [Finding(name, reading.exposition.source, "alive", "up", 1, 1.0)] if name in catalogue.signals else []


def _needs(signal: str, catalogue: Catalogue, pack: Pack) -> list[str]:
    """The signals that must be read for a signal, itself or those it is derived from."""
    derived = pack.derived.get(signal)
    if derived is None:
        known = catalogue.signals.get(signal)
        return [signal] if known is None or not known.derived_from else [
            need for origin in known.derived_from for need in _needs(origin, catalogue, pack)]  # fmt: skip
    return [need for origin in derived.needs for need in _needs(origin, catalogue, pack)]


def _best(rows: Sequence[Finding]) -> Finding | None:
    """The row that decides: a usable one, else one that can be mended, else any."""
    return min(rows, default=None,
               key=lambda row: (not row.usable, row.state in ("untold", "missing"), row.fix is None))


def _shipped(found: Sequence[tuple[Reading, list[str], Finding]], catalogue: Catalogue, pack: Pack
             ) -> list[AlertFinding]:  # fmt: skip
    rows, engine = _by_signal(row for _, _, row in found), _engine(found, catalogue)
    alerts = []
    for alert in pack.alerts.values():
        needs = [need for signal in alert.signals for need in _needs(signal, catalogue, pack)]
        instead = any(row.usable for signal in alert.uses for row in rows.get(signal, []))
        alerts.append(_alert(alert.name, None, [_blind(need, rows.get(need, []), engine) for need in needs], instead))
    return alerts


def _alert(name: str, service: str | None, told: Sequence[Why | None], instead: bool) -> AlertFinding:
    """``told`` is for each signal that the alert needs why it is no good; ``instead``: it has a term with another."""
    blind = sorted((why for why in told if why is not None), key=lambda why: why.untold)
    if not blind:
        return AlertFinding(name, service, True)
    untold = blind[0].untold
    return AlertFinding(name, service, untold and instead, True, blind[0].reason, blind[0].fix,
                        tuple(why.fix for why in blind if not why.untold), untold)  # fmt: skip


def _panels(
    found: Sequence[tuple[Reading, list[str], Finding]],
    catalogue: Catalogue,
    pack: Pack,
    plan: Plan | None,
    boards: Sequence[Board],
) -> Iterator[PanelFinding]:
    """Panels that are rendered: with a plan those for which some service has the signals."""
    rows, engine = _by_signal(row for _, _, row in found), _engine(found, catalogue)
    for board in boards:
        for panel in (panel for row in board.rows for panel in row.panels if panel.needs):
            if plan is not None and not all(signal in plan.signals for signal in panel.needs):
                continue
            needs = [need for signal in panel.needs for need in _needs(signal, catalogue, pack)]
            blind = next((why for need in needs if (why := _blind(need, rows.get(need, []), engine))), None)
            yield PanelFinding(board.title, panel.title, blind is None, *(blind[:2] if blind else (None, None)))


def _engine(found: Sequence[tuple[Reading, list[str], Finding]], catalogue: Catalogue) -> str:
    sources = (catalogue.sources[reading.identity.source] for reading, _, _ in found)
    return next((source.title for source in sources if source.kind == "engine"), "")


def _by_signal(rows: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for row in rows:
        found.setdefault(row.signal, []).append(row)
    return found


def _blind(signal: str, rows: Sequence[Finding], engine: str) -> Why | None:
    best = _best(rows)
    if best is None:
        return Why(*_no_source(signal, engine))
    if best.usable:
        return None
    reason = best.reason or Text("no series", "没有序列")
    return Why(Text(f"{signal}: {reason.en}", f"{signal}：{reason.zh}"), best.fix, best.state == "untold")


def _no_source(signal: str, engine: str) -> tuple[Text, Text | None]:
    """What to say of a signal that no source given has; ``engine`` is the title of the engine among them."""
    reason = Text(f"{signal}: none of the sources given tells it", f"{signal}：所给的数据源都不提供")
    if signal.startswith(("accelerator", "source_", "exporter")):
        return reason, Text("give the sidecar's /metrics too (port 19303), or that of dcgm-exporter or npu-exporter",
                            "请同时提供 sidecar（19303 端口）或 dcgm-exporter、npu-exporter 的 /metrics")  # fmt: skip
    if signal.startswith("expert"):
        return reason, Text("give the sidecar's /metrics too (port 19303), with experts in its --collect",
                            "请同时提供启用了 experts 采集器的 sidecar 的 /metrics（19303 端口）")  # fmt: skip
    if engine:
        return Text(f"{engine} has no metric for {signal}", f"{engine} 没有 {signal} 的指标"), None
    return reason, Text("give the engine's /metrics too", "请同时提供引擎的 /metrics")


def _planned(found: Sequence[tuple[Reading, list[str], Finding]], plan: Plan) -> list[AlertFinding]:
    alerts = []
    for armed in plan.armed:
        service, name = armed.service.name, armed.alert.name
        needs = [need for signal in armed.alert.signals for need in _needs(signal, plan.catalogue, plan.pack)]
        instead = any(plan.has(service, signal) and _blind_in_plan(signal, service, found, plan) is None
                      for signal in armed.alert.uses)  # fmt: skip
        alerts.append(_alert(name, service, [_blind_in_plan(need, service, found, plan) for need in needs], instead))
    alerts += [AlertFinding(blind.alert.name, blind.service.name, False, False, blind.reason, blind.fix,
                            () if blind.wanted else wants(plan, blind)) for blind in plan.blind]  # fmt: skip
    return alerts


def _blind_in_plan(signal: str, service: str, found: Sequence[tuple[Reading, list[str], Finding]], plan: Plan
                   ) -> Why | None:  # fmt: skip
    entry = plan.entry(service, signal)
    if entry is None:  # worked out from the configuration alone
        gap = plan.sources[service].get(signal)
        return Why(gap.reason, gap.fix) if isinstance(gap, Gap) and not plan.has(service, signal) else None
    of_source = "engine_up" if entry.source == "prometheus" else entry.source
    rows = [row for reading, services, row in found
            if row.signal == signal and service in services
            and (reading.identity.source == entry.source or of_source == "engine_up")]  # fmt: skip
    if rows:
        return _blind(signal, rows, entry.source)
    own = {"engine_up": plan.services[service].engine.name, "exporter_up": "sidecar"}
    title = plan.catalogue.sources[own.get(signal, entry.source)].title
    return Why(Text(f"{signal}: comes from {title}, which is not among the sources given",
                 f"{signal}：来自 {title}，但所给的数据源中没有它"),
            Text(f"give the /metrics of {title} too", f"请同时提供 {title} 的 /metrics"))  # fmt: skip


def _derived(signals: Sequence[Finding], catalogue: Catalogue, pack: Pack) -> list[Finding]:
    """Signals that rules compute: as good as the worst of what they need."""
    rows = _by_signal(signals)
    found = []
    for name in {**{n: None for n, s in catalogue.signals.items() if s.derived_from}, **dict.fromkeys(pack.derived)}:
        needs = [_best(rows.get(need, [])) for need in _needs(name, catalogue, pack)]
        there = [row for row in needs if row is not None]
        if not there or len(there) < len(needs):
            continue
        worst = max(there, key=lambda row: ("alive", "unused", "untold", "missing", "wrong").index(row.state))
        reason = worst.reason and Text(f"{worst.signal}: {worst.reason.en}", f"{worst.signal}：{worst.reason.zh}")
        found.append(Finding(name, worst.source, worst.state, "", 0, _ratio(name, rows), reason, worst.fix))
    return found


def _ratio(name: str, rows: Mapping[str, Sequence[Finding]]) -> float | None:
    """What can be told of a ratio from one scrape: since the engine's start, or now for memory of one device."""
    if name != "kv_cache_hit_ratio":
        return None
    hits, queries = (_best(rows.get(signal, [])) for signal in ("kv_cache_hits", "kv_cache_queries"))
    if hits is None or queries is None or not queries.value or hits.value is None:
        return None
    return hits.value / queries.value


def _nowhere(signals: Sequence[Finding], readings: Sequence[Reading], catalogue: Catalogue) -> list[Finding]:
    """Signals that no source given could ever tell, and another could: those of other engines are left out."""
    told = {row.signal for row in signals}
    kinds = {catalogue.sources[reading.identity.source].kind for reading in readings}
    others: set[str] = set()
    for source in catalogue.sources.values():
        if source.kind not in kinds or source.kind == "exporter":
            others.update(entry.signal for entry in source.entries)
    return [Finding(name, "", "missing", reason=reason, fix=fix)
            for name in catalogue.signals if name in others and name not in told
            for reason, fix in (_no_source(name, ""),)]  # fmt: skip


def _notes(readings: Sequence[Reading], catalogue: Catalogue, plan: Plan | None) -> list[Text]:
    notes = []
    for reading in readings:
        source = catalogue.sources[reading.identity.source]
        name = reading.exposition.source
        notes += [Text(f"{name}: {note}", f"{name}: {note}") for note in reading.exposition.notes]
        entries = source.entries
        newest = reading.span[1]
        ahead = newer(catalogue, source.name, newest) if newest else None
        if ahead:
            notes.append(Text(f"{name}: {ahead.en}", f"{name}：{ahead.zh}"))
        if entries and all(entry.evidence == "documentation" for entry in entries):
            notes.append(Text(f"{name}: {source.title} is known from its documentation only",
                              f"{name}：{source.title} 仅据其文档，未经实测"))  # fmt: skip
        if plan is not None and source.kind == "engine" and not _services(reading, catalogue, plan):
            notes.append(Text(f"{name}: is {source.title}, which no service of the configuration runs",
                              f"{name}：是 {source.title}，但配置中没有使用它的服务"))  # fmt: skip
    return notes
