"""Recording rules: raw names of just the engines and versions of the stack become signals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from k3observe.catalogue.expression import recording
from k3observe.catalogue.model import Entry
from k3observe.plan import Plan, exporter_jobs
from k3observe.render.alerts import by_labels, rate_window
from k3observe.render.latency import latency
from k3observe.render.selector import quoted, selector
from k3observe.render.template import fill

DOMAINS = (
    "targets", "load", "outcomes", "tokens", "latency", "lengths", "kv-cache", "experts", "device-memory",
    "device-health", "devices", "fleet", "slo", "budget",
)  # fmt: skip
SLOW = {"budget": 300.0}
"""Seconds between evaluations of domains that look back a month."""


@dataclass(frozen=True)
class Record:
    """A recording rule."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()
    comment: str = ""

    def document(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        return {
            "record": self.record,
            "expr": self.expr,
            **({"labels": dict(self.labels)} if self.labels else {}),
        }


_NAMED = {
    **dict.fromkeys(("engine_up", "engines", "replicas_expected", "exporter_up", "source_freshness", "source_up"),
                    "targets"),
    **dict.fromkeys(("engine_sleeping", "requests_running", "requests_waiting", "requests_deferred"), "load"),
    **dict.fromkeys(("prompt_length", "output_length", "prefill_time", "decode_time"), "lengths"),
    **dict.fromkeys(("accelerator_health", "accelerator_fault", "accelerator_errors", "accelerator_last_xid",
                     "accelerator_row_remap_failure", "accelerator_read_ok", "accelerator_read_age"), "device-health"),
}  # fmt: skip
_PREFIXES = {
    "kv_": "kv-cache", "preemptions": "kv-cache", "expert_": "experts", "accelerator_memory": "device-memory",
    "accelerator": "devices", "requests_": "outcomes", "request_": "outcomes",
}  # fmt: skip


def domain(signal: str, kind: str) -> str:
    """The group in which a signal is recorded: small ones, so that a test need not load them all."""
    if signal in _NAMED:
        return _NAMED[signal]
    if kind == "histogram":
        return "latency"
    return next((name for prefix, name in _PREFIXES.items() if signal.startswith(prefix)), "tokens")


def groups(plan: Plan) -> dict[str, list[Record]]:
    """Recording rules by domain, in the order in which domains build on each other."""
    found: dict[str, list[Record]] = {name: [] for name in DOMAINS}
    for name, signal in plan.catalogue.signals.items():
        found[domain(name, signal.kind)].extend(_recorded(plan, name))
    for name in plan.pack.derived:
        found[place(plan, name)].extend(_derived(plan, name))
    found["fleet"].extend(_aliases(plan))
    return {name: records for name, records in found.items() if records}


def place(plan: Plan, name: str) -> str:
    """The domain in which a derived signal is recorded: after all that it is worked out from."""
    signals, derived = plan.catalogue.signals, plan.pack.derived[name]
    if derived.domain is not None:
        return derived.domain
    homes = {
        place(plan, need) if need in plan.pack.derived else domain(need, signals[need].kind)
        for need in (*derived.needs, *derived.any, *derived.uses)
    }
    return homes.pop() if len(homes) == 1 else "fleet"


def domains(plan: Plan, signals: Iterable[str]) -> set[str]:
    """The domains without which some signals are not recorded."""
    found: set[str] = set()
    for name in signals:
        if name in plan.catalogue.signals:
            found.add(domain(name, plan.catalogue.signals[name].kind))
        if name in plan.pack.derived:
            derived = plan.pack.derived[name]
            found |= {place(plan, name), *domains(plan, (*derived.needs, *derived.any, *derived.uses))}
    return found


def base_labels(plan: Plan) -> list[str]:
    """Labels every recorded series keeps: stack, service, role and the identity labels."""
    return ["stack", "service", "role", *plan.config.identity_labels]


def _recorded(plan: Plan, name: str) -> Iterator[Record]:
    """One rule a series: where engines name a signal differently, their services stand side by side with ``or``."""
    signal = plan.catalogue.signals[name]
    shared: dict[int, tuple[Entry, list[str]]] = {}
    for service in plan.config.services:
        entry = plan.entry(service.name, name)
        if entry is not None and not plan.derives(service.name, name):
            shared.setdefault(id(entry), (entry, []))[1].append(service.name)
    found: dict[str, tuple[list[str], dict[str, None]]] = {}
    for entry, services in shared.values():
        jobs = {job: None for service in services for job in source_jobs(plan, service, entry)}
        job = f"job={quoted(next(iter(jobs)))}" if len(jobs) == 1 else f"job=~{quoted('|'.join(jobs))}"
        matchers = f"{selector(plan.config, services)}, {job}"
        window = str(rate_window(plan.config))
        for record, expr in recording(signal, entry, matchers, base_labels(plan), window):
            # the recorded name is the signal's, whatever window a slow scrape needs
            parts, warnings = found.setdefault(record.replace(f":rate{window}", ":rate5m"), ([], {}))
            parts.append(expr)
            warnings[_warning(plan, entry)] = None
    for record, (parts, warnings) in found.items():
        yield Record(record, "\nor\n".join(parts), comment="\n".join(filter(None, warnings)))


def source_jobs(plan: Plan, service: str, entry: Entry) -> list[str]:
    """The values of ``job`` that an entry's series have."""
    if entry.signal == "exporter_up":
        return exporter_jobs(plan.services[service])
    return ["k3-engine" if entry.source == "prometheus" else plan.catalogue.sources[entry.source].job]


def _warning(plan: Plan, entry: Entry) -> str:
    source = plan.catalogue.sources[entry.source]
    told = entry.misleads.get(plan.config.language) if entry.misleads else ""
    if entry.evidence == "documentation":
        kind = {"en": "known from documentation only", "zh-CN": "仅据文档，未经实测"}[plan.config.language]
        told = f"{source.title}: {kind}" + (f". {told}" if told else "")
    return told


def _derived(plan: Plan, name: str) -> Iterator[Record]:
    derived = plan.pack.derived[name]
    services = [s.name for s in plan.config.services if plan.derives(s.name, name)]
    if not services:
        return
    common: dict[str, Any] = {
        "by": ", ".join(base_labels(plan)),
        "service_by": ", ".join(by_labels(plan.config)),
        "rate_window": rate_window(plan.config),
        "identity": ", ".join(plan.config.identity_labels),
        "has": lambda signal: any(plan.has(service, signal) for service in services),
        "scrape_interval": plan.config.prometheus.scrape_interval,
    }
    if derived.per == "stack":
        yield Record(derived.record, fill(derived.expr, common | {"sel": selector(plan.config, services)}))
        return
    shared: dict[str, list[str]] = {}
    for service in services:
        known = common | {
            "facts": plan.facts[service], "thresholds": plan.thresholds[service], "sel": "\0",
            "has": partial(plan.has, service), "includes": partial(_includes, plan, service),
            "latency": partial(latency, plan, service, sel="\0", by=common["by"]),
            "ended": partial(_ended, plan, service, common["by"], common["rate_window"]),
        }  # fmt: skip
        shared.setdefault(fill(derived.expr, known), []).append(service)
    for expr, alike in shared.items():
        if not expr:
            continue
        if "\0" in expr:
            yield Record(derived.record, expr.replace("\0", selector(plan.config, alike)))
            continue
        for service in alike:
            owner = plan.services[service]
            labels = (("stack", plan.config.stack), ("service", service), ("role", owner.role))
            yield Record(derived.record, expr, labels)


def _ended(plan: Plan, service: str, by: str, window: str, part: str) -> tuple[str, str]:
    """Rates of requests that ended as ``part`` says, and of all that ended, which some engines count without those."""
    rates = [
        f"sum by ({by}) (rate({plan.catalogue.signals[name].series}{{\0}}[{window}]))"
        for name in (part, "requests_finished")
    ]  # fmt: skip
    some, every = rates
    guarded = f"({some} or 0 * {every})"
    if _includes(plan, service, "requests_finished", part):
        return guarded, every
    return guarded, f"(({every} or 0 * {some}) + {guarded})"


def _includes(plan: Plan, service: str, whole: str, part: str) -> bool:
    """Whether a service's source counts ``part`` in ``whole`` already."""
    entry = plan.entry(service, whole)
    return entry is not None and part in entry.includes


def _aliases(plan: Plan) -> Iterator[Record]:
    for alias, series in sorted(plan.aliases.items()):
        yield Record(alias, f"{series}{{stack={quoted(plan.config.stack)}}}")


