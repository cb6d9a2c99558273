"""Raw series, as a scrape of a service's targets has them, that give its signals the values of a test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.expression import ExampleSeries, Spelling, example_histogram, example_series
from k3observe.catalogue.model import Entry, Signal
from k3observe.config.model import Service
from k3observe.plan import Plan
from k3observe.render import recording
from k3observe.render.arithmetic import evaluate, minutes
from k3observe.render.pods import labels as target_labels
from k3observe.render.prometheus import sidecar_targets
from k3observe.render.template import fill
from k3observe.render.timeline import Steps, counter, plus, values
from k3observe.rules.model import Input

_DEFAULTS = {
    "engine": "0", "rank": "0", "device": "0", "vendor": "nvidia", "uuid": "GPU-5e1f0000-0000-4000-8000-000000000000",
    "kind": "xid_79", "scope": "rank", "phase": "all", "formula": "mean_of_layers", "tier": "device", "link": "0",
    "reason": "hw_thermal_slowdown", "collector": "experts", "source": "plugin", "code": "80E18005",
}  # fmt: skip


def feed(
    plan: Plan, service: Service, inputs: Sequence[Input], planned: Iterable[str], known: Mapping[str, Any],
    step: float, spelling: Spelling,
) -> dict[str, str] | None:  # fmt: skip
    """Series and values for promtool; None where the service's source has no series with the labels of an input.

    What is worked out from other signals is not fed. ``planned`` are the signals that an input with ``each: signal``
    stands for.
    """
    found: dict[str, str] = {}
    items = [item.model_copy(update={"labels": filled(item.labels, known)}) if item.labels else item
             for item in _spread(plan, service, inputs, planned)
             if plan.entry(service.name, item.signal) and not plan.derives(service.name, item.signal)]  # fmt: skip
    grown: dict[str, Steps] = {}
    for item in items:
        steps = _steps(item, known, step)
        if plan.catalogue.signals[item.signal].kind == "histogram":
            for text, growth in _histogram(plan, service, item, steps, evaluate(item.rate, known) * step, spelling):
                grown[text] = plus(grown[text], growth) if text in grown else growth
            continue
        for other in _included(plan, service, item, items):
            steps = plus(steps, _steps(other, known, step), -1)
        given = list(_series(plan, service, item, steps, step, spelling))
        if not given:
            return None
        for text, notation in given:
            found.setdefault(text, notation)
    return found | {text: counter(growth) for text, growth in grown.items()}


def _spread(plan: Plan, service: Service, inputs: Sequence[Input], planned: Iterable[str]) -> Iterator[Input]:
    """Inputs, with one for each planned signal where an input stands for all of them."""
    for item in inputs:
        if item.each != "signal":
            yield item
            continue
        for signal in sorted(planned):
            entry = plan.entry(service.name, signal)
            # a raw value below the least one is a failed read
            least = (entry.at_least or 0.0) * entry.scale if entry is not None else 0.0
            raised = [(max(value, least) if isinstance(value, float) else value, time) for value, time in item.values]
            yield item.model_copy(update={"signal": signal, "each": None, "values": raised})


def filled(labels: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a case with the numbers filled in (``xid_<< code >>``)."""
    return {name: fill(value, known) for name, value in labels.items()}


def _included(plan: Plan, service: Service, item: Input, inputs: Sequence[Input]) -> list[Input]:
    """Inputs that are a part of this one's value and come from the same raw metric."""
    entry = plan.entry(service.name, item.signal)
    parts = entry.includes if entry is not None else ()
    return [other for other in inputs if other.signal in parts and other.labels == item.labels]


def job_of(plan: Plan, service: Service, signal: str) -> str:
    """The job of the target from which a service's signal comes."""
    entry = plan.entry(service.name, signal)
    return recording.source_jobs(plan, service.name, entry)[0] if entry is not None else "k3-engine"


def series_labels(plan: Plan, service: Service, job: str) -> dict[str, str]:
    """Labels that a service's series have in tests: the target's, and the first engine and device."""
    config = plan.config
    identity = {name: config.external_labels.get(name, f"{name}-a") for name in config.identity_labels}
    ascend = service.accelerators is not None and service.accelerators.kind == "ascend"
    device = {"vendor": "ascend", "device": "0-0", "uuid": "0000:C1:00.0", "kind": "ecc_uncorrected"} if ascend else {}
    return {
        **_DEFAULTS, **device, **identity, "instance": instances(plan, service, job)[0],
        "model_name": str(plan.facts[service.name]["model_name"]), **target_labels(config, service, job),
    }  # fmt: skip


def instances(plan: Plan, service: Service, job: str) -> list[str]:
    """Addresses of a service's targets: those of the configuration, then made up for as many replicas as expected."""
    accelerators = service.accelerators
    listed = list(service.targets)
    if job == "k3-sidecar" and (service.targets or service.sidecar.targets):
        listed = sidecar_targets(service)
    elif job != "k3-engine" and accelerators is not None:
        listed = list(accelerators.targets)
    wanted = max(1, plan.facts[service.name]["replicas_expected"] or 1)
    port = {"k3-engine": 8000, "k3-sidecar": service.sidecar.port}.get(job, 9400)
    return [*listed, *(f"{service.name}-{number}:{port}" for number in range(len(listed), wanted))][:wanted]


def _series(
    plan: Plan, service: Service, item: Input, steps: Steps, step: float, spelling: Spelling
) -> Iterator[tuple[str, str]]:
    entry, signal = plan.entry(service.name, item.signal), plan.catalogue.signals[item.signal]
    assert entry is not None
    job = job_of(plan, service, item.signal)
    places = instances(plan, service, job) if item.each == "replica" else instances(plan, service, job)[:1]
    for place in places:
        labels = {**_target(plan, service, signal, job), "instance": place, **_constants(entry, signal), **item.labels}
        rows = _counted(example_series(signal, entry, labels, spelling), steps)
        for row in rows:
            # the info series beside a counter of blocks stands still
            grows = entry.terms[0].type == "summary" or (signal.kind == "counter" and row.factor != 0)
            yield row.series, values(row, steps, step, grows, item.start)


def _constants(entry: Entry, signal: Signal) -> dict[str, str]:
    """Labels of a signal that are the same on every series of the source."""
    labels = {**entry.labels, **entry.terms[0].labels}
    return {name: label.constant for name, label in labels.items() if label.constant and name in signal.labels}


def _counted(rows: list[ExampleSeries], steps: Steps) -> list[ExampleSeries]:
    """Where the signal counts series, as many as it must count; those beyond the examples are made after the last."""
    last = rows[-1] if rows else None
    if last is None or not last.from_count:
        return rows
    wanted = int(max((value for value, _ in steps if value == value), default=0))
    number = str(last.from_count - 1)
    more = [
        last._replace(series=re.sub(rf'(?<=["-]){number}(?=")', str(index), last.series), from_count=index + 1)
        for index in range(last.from_count, wanted)
    ]  # fmt: skip
    return [*rows, *more]


def _target(plan: Plan, service: Service, signal: Signal, job: str) -> dict[str, str]:
    """Labels of the target that serves a signal, and of the signal."""
    full = series_labels(plan, service, job)
    names = {*target_labels(plan.config, service, job), *plan.config.identity_labels, "instance", *signal.labels}
    names.discard("le")
    return {name: full[name] for name in names if name in full} | {"job": job}


def _steps(item: Input, known: Mapping[str, Any], step: float) -> Steps:
    """Values of the signal and for how many scrapes they hold; ``step_`` is the time of one."""
    known = {**known, "step_": step / 60}
    return tuple((evaluate(value, known), max(1, round(minutes(lasts, known) * 60 / step)))
                 for value, lasts in item.values)  # fmt: skip


def _histogram(
    plan: Plan, service: Service, item: Input, steps: Steps, each: float, spelling: Spelling
) -> Iterator[tuple[str, Steps]]:
    """Growth of a histogram's counters a scrape: ``each`` observations, as long as the value says; none below 0."""
    entry, signal = plan.entry(service.name, item.signal), plan.catalogue.signals[item.signal]
    assert entry is not None
    job = job_of(plan, service, item.signal)
    labels = {**_target(plan, service, signal, job), **_constants(entry, signal), **item.labels}
    found: dict[str, list[tuple[float, int]]] = {}
    for value, count in steps:
        for row in example_histogram(signal, entry, max(value, 0.0) if value == value else 0.0, labels, spelling):
            growth = row.factor * each if value >= 0 else value if value != value else 0.0
            found.setdefault(row.series, []).append((growth, count))
    yield from ((series, tuple(growths)) for series, growths in found.items())
