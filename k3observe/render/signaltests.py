"""Promtool unit tests of the recording rules: raw series in, signals out.

Values are compared as whole ten-thousandths, since promtool compares every bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.model import Signal
from k3observe.config.model import Service
from k3observe.config.values import Duration
from k3observe.plan import Plan
from k3observe.render import recording
from k3observe.render.alerts import rate_window
from k3observe.render.arithmetic import evaluate
from k3observe.render.feed import feed, filled, job_of, series_labels
from k3observe.render.template import number
from k3observe.render.unittests import circumstances, moment, possible, spellings, title
from k3observe.rules.model import Case, Expected, Input


def documents(plan: Plan, recorded: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (domain, promtool test file) for each domain; ``recorded`` are all of them, in order."""
    step = max(plan.config.prometheus.scrape_interval.seconds, 30.0)
    for domain in recorded:
        tests = [*_raw(plan, domain, step), *_derived(plan, domain, step)]
        if tests:
            needed = recording.domains(plan, _signals(plan, domain))
            order = [f"{plan.config.stack}-signals-{name}" for name in recorded if name in needed]
            yield domain, {
                "rule_files": [f"../rules/{name}.yml" for name in order],
                "evaluation_interval": str(Duration.of(step)),
                "group_eval_order": order,
                "tests": [{"interval": str(Duration.of(step)), **test} for test in tests],
            }


def _signals(plan: Plan, domain: str) -> list[str]:
    """Signals that a domain records."""
    raw = [name for name, item in plan.catalogue.signals.items() if recording.domain(name, item.kind) == domain]
    return raw + [name for name in plan.pack.derived if recording.place(plan, name) == domain]


def _raw(plan: Plan, domain: str, step: float) -> Iterator[dict[str, Any]]:
    """One test for each signal and source, as the first service has it."""
    seen: set[int] = set()
    for name, signal in plan.catalogue.signals.items():
        if recording.domain(name, signal.kind) != domain:
            continue
        for service in plan.config.services:
            entry = plan.entry(service.name, name)
            if entry is None or id(entry) in seen or plan.derives(service.name, name):
                continue
            seen.add(id(entry))
            yield from _reading(plan, service, signal, step)


def _reading(plan: Plan, service: Service, signal: Signal, step: float) -> Iterator[dict[str, Any]]:
    entry = plan.entry(service.name, signal.name)
    assert entry is not None
    value = max(1.0, entry.scale, (entry.at_least or 0.0) * entry.scale)
    if signal.kind == "histogram" and not entry.buckets:
        return
    given = Input(signal=signal.name, values=[(entry.buckets[0] if signal.kind == "histogram" else value, 12.0)])
    known = circumstances(plan, service.name)
    prefixed = bool(plan.catalogue.sources[entry.source].prefix)
    labels = _labels(plan, service, signal, {})
    for spelling in ("colon", "underscore") if prefixed else ("colon",):
        series = feed(plan, service, [given], (), known, step, spelling)
        if series is None:
            continue
        # other series may come from the same raw metric, such as the phases of a balance
        only = ",".join(f'{name}="{labels[name]}"' for name in entry.terms[0].labels if name in labels)
        expected = {signal.series + (f"{{{only}}}" if only else ""): (labels, value)}
        if signal.kind == "counter":
            expected = {f"rate({signal.series}[{rate_window(plan.config)}])": (labels, value)}
        elif signal.kind == "histogram":
            first = number(entry.buckets[0])
            expected = {
                f'sum without (le) ({signal.series}_bucket:rate5m{{le=~"{first}([.]0)?"}})': (labels, 1.0),
                f"{signal.series}_sum:rate5m": (labels, entry.buckets[0]),
                f"{signal.series}_count:rate5m": (labels, 1.0),
            }
        yield _test(f"{signal.name} ({service.name}, {entry.source}) is recorded" + (
            "" if spelling == "colon" else ", names with underscores"), series,
            [(expr, "11m", [sample]) for expr, sample in expected.items()])  # fmt: skip


def _derived(plan: Plan, domain: str, step: float) -> Iterator[dict[str, Any]]:
    """The cases of each derived series, for the first service that has it."""
    for name, derived in plan.pack.derived.items():
        service = next((item for item in plan.config.services if plan.derives(item.name, name)), None)
        if service is None or recording.place(plan, name) != domain:
            continue
        known = circumstances(plan, service.name)
        for case in derived.tests:
            if possible(plan, service, case, known):
                yield from _case(plan, service, name, case, known, step)


def _case(
    plan: Plan, service: Service, name: str, case: Case, known: Mapping[str, Any], step: float
) -> Iterator[dict[str, Any]]:
    signal, record = plan.catalogue.signals[name], plan.pack.derived[name].record
    only = f'{{stack="{plan.config.stack}", service="{service.name}"}}'
    for spelling in spellings(case):
        series = feed(plan, service, case.input, (), known, step, spelling)
        if series is None:
            return
        samples = [
            (_labels(plan, service, signal, _own(plan, one, known), case), evaluate(one.value, known))
            for one in case.fires
        ]  # fmt: skip
        yield _test(
            f"{name} ({service.name}): {title(case, spelling)}", series,
            [(record + only, moment(at, known), samples) for at in case.at]
            + [(record + only, moment(at, known), []) for at in case.quiet],
        )  # fmt: skip


def _own(plan: Plan, expected: Expected, known: Mapping[str, Any]) -> dict[str, str]:
    bare = dict.fromkeys(plan.config.identity_labels, "") if expected.bare else {}
    return bare | filled(expected.labels, known)


def _labels(
    plan: Plan, service: Service, signal: Signal, own: Mapping[str, str], case: Case | None = None
) -> dict[str, str]:
    """Labels of the recorded series."""
    entry = plan.entry(service.name, signal.name)
    source = case.input[0].signal if case and case.input else signal.name
    full = series_labels(plan, service, job_of(plan, service, source))
    if entry is not None:
        terms = {**entry.labels, **entry.terms[0].labels}
        full |= {name: label.constant for name, label in terms.items() if label.constant}
    full |= own
    names = [*recording.base_labels(plan), *(name for name in signal.labels if name != "le")]
    return {name: full[name] for name in names if full.get(name)}


def _test(
    name: str, series: Mapping[str, str], expected: list[tuple[str, str, list[tuple[dict[str, str], float]]]]
) -> dict[str, Any]:
    return {
        "name": name,
        "input_series": [{"series": text, "values": values} for text, values in sorted(series.items())],
        "promql_expr_test": [
            {
                "expr": f"round(10000 * {expr})",
                "eval_time": at,
                "exp_samples": [{"labels": _braced(labels), "value": round(10000 * value)} for labels, value in samples],
            }
            for expr, at, samples in expected
        ],
    }  # fmt: skip


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
