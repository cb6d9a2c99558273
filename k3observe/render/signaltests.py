"""Promtool unit tests of the recording rules: raw series in, signals out.

Values are compared as whole ten-thousandths, since promtool compares every bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.expression import Spelling
from k3observe.catalogue.model import Entry, Signal
from k3observe.config.model import Service
from k3observe.config.values import Duration
from k3observe.plan import Plan
from k3observe.render import recording
from k3observe.render.alerts import rate_window
from k3observe.render.arithmetic import evaluate
from k3observe.render.feed import feed, filled, job_of, series_labels
from k3observe.render.latency import latency
from k3observe.render.selector import quoted
from k3observe.render.template import number
from k3observe.render.unittests import circumstances, interval, moment, possible, spellings, title
from k3observe.rules.model import Case, Expected, Input

_Sample = tuple[str, str, list[tuple[dict[str, str], float]]]
"""An expression, when it is evaluated, and the series it gives."""
_BOTH: tuple[Spelling, ...] = ("colon", "underscore")


def documents(plan: Plan, recorded: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (domain, promtool test file) for each domain; ``recorded`` are all of them, in order."""
    for domain in recorded:
        step = interval(plan, 60.0 if domain in ("slo", "budget") else 30.0)
        tests = [*_raw(plan, domain, step), *_derived(plan, domain, step)]
        if tests:
            needed = recording.domains(plan, _signals(plan, domain))
            order = [f"{plan.config.stack}-signals-{name}" for name in recorded if name in needed]
            yield domain, {
                "rule_files": [f"../rules/{name}.yml" for name in order],
                "evaluation_interval": str(Duration.of(2 * step if step <= 60 else step)),
                "group_eval_order": order,
                "tests": [{"interval": str(Duration.of(step)), **test} for test in tests],
            }


def _signals(plan: Plan, domain: str) -> list[str]:
    """Signals that a domain records."""
    raw = [name for name, item in plan.catalogue.signals.items() if recording.domain(name, item.kind) == domain]
    return raw + [name for name in plan.pack.derived if recording.place(plan, name) == domain]


def _raw(plan: Plan, domain: str, step: float) -> Iterator[dict[str, Any]]:
    """Each signal from each of its sources, as the first service has it; as many in one test as share no raw metric."""
    packed: dict[tuple[str, Spelling], list[tuple[set[str], dict[str, str], list[_Sample]]]] = {}
    for service, signal, entry in _firsts(plan, domain):
        prefixed = bool(plan.catalogue.sources[entry.source].prefix)
        for spelling in _BOTH if prefixed else _BOTH[:1]:
            found = _reading(plan, service, signal, entry, step, spelling)
            if found is None:
                continue
            tests, names = packed.setdefault((service.name, spelling), []), set(entry.metrics)
            place = next((test for test in tests if not test[0] & names), None)
            if place is None:
                tests.append(place := (set(), {}, []))
            place[0].update(names)
            place[1].update(found[0])
            place[2].extend(found[1])
    for (name, spelling), tests in packed.items():
        suffix = "" if spelling == "colon" else ", names with underscores"
        for _, series, samples in tests:
            yield _test(f"{domain} ({name}): raw series are recorded{suffix}", series, samples)


def _strangers(plan: Plan, entry: Entry, series: dict[str, str]) -> dict[str, str]:
    """The same series of another stack, of another job, and with other values of each label that is selected on."""
    stack = plan.config.stack
    found: dict[str, str] = {}
    matched = {name for term in entry.terms for name in term.match}
    for text, values in series.items():
        for name, other in {"stack": f"{stack}-other", "job": "other", **dict.fromkeys(matched, "other")}.items():
            changed, count = re.subn(rf'(?<=[{{,]){name}="(?:[^"\\\\]|\\\\.)*"', f'{name}="{other}"', text)
            if count:
                found[changed] = values
    return found


def _firsts(plan: Plan, domain: str) -> Iterator[tuple[Service, Signal, Entry]]:
    """Signals of a domain with each entry they are recorded from, and the first service of that."""
    for name, signal in plan.catalogue.signals.items():
        if recording.domain(name, signal.kind) != domain:
            continue
        seen: set[int] = set()
        for service in plan.config.services:
            entry = plan.entry(service.name, name)
            if entry is not None and id(entry) not in seen and not plan.derives(service.name, name):
                seen.add(id(entry))
                yield service, signal, entry


def _reading(
    plan: Plan, service: Service, signal: Signal, entry: Entry, step: float, spelling: Spelling
) -> tuple[dict[str, str], list[_Sample]] | None:
    """Series that give a signal a value, and what is recorded then; of parts with labels of their own, each."""
    value, loud = _values(signal, entry)
    known = circumstances(plan, service.name)
    series: dict[str, str] = {}
    samples: list[_Sample] = []
    for own in _parts(signal, entry):
        given = Input(signal=signal.name, values=[(value, 12.0)], labels=own)
        fed = feed(plan, service, [given], (), known, step, spelling)
        if fed is None:
            continue
        others = feed(plan, service, [given.model_copy(update={"values": [(loud, 12.0)]})], (), known, step, spelling)
        series = _strangers(plan, entry, _checked(others or {}, value)) | series | _checked(fed, value)
        labels = _labels(plan, service, signal, own)
        only = {"service": service.name} | {name: labels[name] for name in own if name in labels}
        selector = ", ".join(f"{name}={quoted(text)}" for name, text in only.items())
        recorded = _recorded(plan, signal, entry, selector, value)
        samples += [(expr, moment(11, known), [(labels, amount)]) for expr, amount in recorded]
    return (series, samples) if samples else None


def _checked(series: Mapping[str, str], bound: float) -> dict[str, str]:
    """Of a histogram's buckets, the one that is looked at and the last: all of them would prove no more."""
    seen = (f'le="{number(bound)}"', f'le="{bound}"', 'le="+Inf"')
    return {text: values for text, values in series.items() if ',le="' not in text or any(le in text for le in seen)}


def _values(signal: Signal, entry: Entry) -> tuple[float, float]:
    """A value, and another that would be seen in the recorded one if it were taken in."""
    if signal.kind == "histogram":
        bound = entry.buckets[0] if entry.buckets else 1.0
        return bound, bound / 3
    if entry.equals is not None:
        return (1.0, 0.0) if entry.aggregate == "min" else (0.0, 1.0)
    value = max(1.0, entry.scale, (entry.at_least or 0.0) * entry.scale)
    return value, value / 3 if entry.aggregate == "min" else 3 * value


def _parts(signal: Signal, entry: Entry) -> list[dict[str, str]]:
    """Labels that tell the parts of a signal apart, where each comes from a raw metric of its own."""
    parts = [
        {name: label.constant for name, label in term.labels.items() if label.constant and name in signal.labels}
        for term in entry.terms
    ]  # fmt: skip
    return parts if entry.combine == "union" and all(parts) else parts[:1]


def _recorded(plan: Plan, signal: Signal, entry: Entry, only: str, value: float) -> list[tuple[str, float]]:
    if signal.kind == "counter":
        return [(f"rate({signal.series}{{{only}}}[{rate_window(plan.config)}])", value)]
    if signal.kind == "histogram":
        le = f'le=~"{number(value)}([.]0)?"' if entry.buckets else 'le="+Inf"'
        return [
            (f"sum without (le) ({signal.series}_bucket:rate5m{{{only}, {le}}})", 1.0),
            (f"{signal.series}_sum:rate5m{{{only}}}", value),
            (f"{signal.series}_count:rate5m{{{only}}}", 1.0),
        ]
    return [(f"{signal.series}{{{only}}}", value)]


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
    only = f'{{service="{service.name}"}}'
    for spelling in spellings(case):
        series = feed(plan, service, case.input, (), known, step, spelling)
        if series is None:
            return
        series = _foreign(plan, service, name, step) | series
        samples = [
            (_labels(plan, service, signal, _own(plan, one, known), case), evaluate(one.value, known))
            for one in case.fires
            if (objective := one.labels.get("slo", "")) not in known["latencies"]
            or latency(plan, service.name, objective, "", "") is not None  # means nothing for some roles
        ]  # fmt: skip
        yield _test(
            f"{name} ({service.name}): {title(case, spelling)}", series,
            [(record + only, moment(at, known), samples) for at in case.at]
            + [(record + only, moment(at, known), []) for at in case.quiet],
        )  # fmt: skip


def _foreign(plan: Plan, service: Service, name: str, step: float) -> dict[str, str]:
    """What another stack has recorded of all that a derived series is worked out from."""
    derived, other = plan.pack.derived[name], {"stack": f"{plan.config.stack}-other"}
    found: dict[str, str] = {}
    for need in (*derived.needs, *derived.any, *derived.uses):
        signal, entry = plan.catalogue.signals[need], plan.entry(service.name, need)
        labels = _labels(plan, service, signal, {"slo": "errors"} | other)
        if signal.kind == "histogram":
            for suffix in ("_sum", "_count"):
                found[f"{signal.series}{suffix}:rate5m{_braced(labels)}"] = "1x200"
            for bound in entry.buckets if entry is not None else ():
                found[f"{signal.series}_bucket:rate5m{_braced({**labels, 'le': number(bound)})}"] = "0.5x200"
        else:
            found[signal.series + _braced(labels)] = f"0+{number(step)}x200" if signal.kind == "counter" else "1x200"
    return found


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


def _test(name: str, series: Mapping[str, str], expected: list[_Sample]) -> dict[str, Any]:
    return {
        "name": name,
        "input_series": [{"series": text, "values": values} for text, values in sorted(series.items())],
        "promql_expr_test": [
            {
                "expr": f"round(10000 * {expr})",
                "eval_time": at,
                "exp_samples": [
                    {"labels": _braced(labels), "value": round(10000 * value)} for labels, value in samples
                ],
            }
            for expr, at, samples in expected
        ],
    }  # fmt: skip


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}={quoted(value)}" for name, value in sorted(labels.items())) + "}"
