"""Promtool unit tests of the rendered alerts, from the same numbers as the alerts.

Inputs are raw series as a scrape of the service's engine has them, so that a test runs through the recording rules as
well: a signal that is recorded wrongly fails here too.
"""

from __future__ import annotations

import ast
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.expression import ExampleSeries, Spelling, example_histogram, example_series
from k3observe.catalogue.model import Entry, Signal
from k3observe.config.model import Service
from k3observe.config.values import Duration
from k3observe.plan import Plan
from k3observe.render import recording
from k3observe.render.alerts import Rule, rate_window
from k3observe.render.pods import labels as target_labels
from k3observe.render.prometheus import sidecar_targets
from k3observe.render.template import expand, fill, holds, number
from k3observe.rules.model import Case, Expected, Input

Steps = list[tuple[float, int]]

_DEFAULTS = {
    "engine": "0", "rank": "0", "device": "0", "vendor": "nvidia", "uuid": "GPU-5e1f0000-0000-4000-8000-000000000000",
    "kind": "xid", "scope": "rank", "phase": "all", "formula": "mean_of_layers", "tier": "device", "link": "0",
    "reason": "hw_thermal_slowdown", "collector": "experts", "source": "plugin",
}  # fmt: skip


def documents(plan: Plan, rules: Sequence[Rule], group: str, recorded: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield (alert, promtool test file) for the rules of one alert each.

    A test loads the alert's group and the groups that record its signals, and no others: promtool evaluates every rule
    it has loaded at every step. ``recorded`` are the domains that are recorded at all, in order.
    """
    by_alert: dict[str, list[Rule]] = {}
    for rule in rules:
        by_alert.setdefault(rule.alert.name, []).append(rule)
    for name, alike in by_alert.items():
        step = _step(plan, alike)
        cases = [test for rule in alike for test in _tests(plan, rule, step)]
        if cases:
            alert = alike[0].alert
            inputs = {item.signal for case in alert.tests for item in case.input}
            used = {signal for rule in alike for signal in rule.settings.uses}
            needed = recording.domains(plan, inputs | used | {*alert.signals})
            order = [*(f"{plan.config.stack}-signals-{name}" for name in recorded if name in needed), group]
            yield name, {
                "rule_files": [f"../rules/{name}.yml" for name in order],
                "evaluation_interval": str(Duration.of(step)),
                "group_eval_order": order,
                "tests": [{"interval": str(Duration.of(step)), **case} for case in cases],
            }


def _step(plan: Plan, rules: Sequence[Rule]) -> float:
    """Seconds between samples and evaluations of a test: as in production, but not finer than the windows need.

    Promtool evaluates every step of hours, which at a scrape interval of a second would take minutes.
    """
    every = rules[0].alert.tests_every
    if every is not None:
        return max(plan.config.prometheus.scrape_interval.seconds, every.seconds)
    spans = [span.seconds for rule in rules for span in (rule.settings.window, rule.settings.for_) if span]
    shortest = min((seconds for seconds in spans if seconds), default=60.0)
    return max(plan.config.prometheus.scrape_interval.seconds, min(30.0, shortest // 4))


def _tests(plan: Plan, rule: Rule, step: float) -> Iterator[dict[str, Any]]:
    service = plan.services[rule.services[0]]
    facts, window = plan.facts[service.name], rule.settings.window
    known = {
        "threshold": rule.settings.threshold, "params": dict(rule.settings.params), "facts": facts,
        "for_": rule.settings.for_.seconds / 60, "window": window.seconds / 60 if window else None,
        "rate_": rate_window(plan.config).seconds / 60, "devices": facts["accelerators_per_node"] or 8,
        "code": next(iter(rule.settings.codes), None), **_around(plan, service.name, rule),
    }  # fmt: skip
    for case in rule.alert.tests:
        spellings: tuple[Spelling, ...] = ("colon", "underscore") if case.variants else ("colon",)
        for spelling in spellings:
            if all(plan.has(service.name, item.signal) for item in case.input) and holds(case.when, known):
                test = _test(plan, rule, service, case, known, step, spelling)
                if test is not None:
                    yield test


def _around(plan: Plan, service: str, rule: Rule) -> dict[str, float]:
    """Bounds of the buckets that hold a latency just over the threshold (``over_low``, ``over_high``), just under it."""
    entry = plan.entry(service, rule.alert.signals[0]) if rule.alert.signals else None
    limit = rule.settings.threshold
    if entry is None or not entry.buckets or limit is None:
        return {}
    bounds = (0.0, *entry.buckets, 2 * entry.buckets[-1])
    over, under = bisect_right(bounds, limit), bisect_left(bounds, limit)
    if not 0 < under <= over < len(bounds):
        return {}
    return {
        "over_low": bounds[over - 1], "over_high": bounds[over],
        "under_low": bounds[under - 1], "under_high": bounds[under],
    }  # fmt: skip


def _test(
    plan: Plan, rule: Rule, service: Service, case: Case, known: Mapping[str, Any], step: float, spelling: Spelling
) -> dict[str, Any] | None:
    """One test; None where the service's source has no series with the labels of the case."""
    series: dict[str, str] = {}
    # what is worked out from other signals is not fed
    inputs = [item.model_copy(update={"labels": _filled(item.labels, known)})
              for item in _spread(plan, service, case.input, rule.settings.uses)
              if plan.entry(service.name, item.signal) and not plan.derives(service.name, item.signal)]  # fmt: skip
    grown: dict[str, Steps] = {}
    for item in inputs:
        steps = _steps(item, known, step)
        if plan.catalogue.signals[item.signal].kind == "histogram":
            for text, growth in _histogram(plan, service, item, steps, evaluate(item.rate, known) * step, spelling):
                grown[text] = _plus(grown[text], growth) if text in grown else growth
            continue
        for other in _included(plan, service, item, inputs):
            steps = _plus(steps, _steps(other, known, step), -1)
        given = list(_series(plan, service, item, steps, step, spelling))
        if not given:
            return None
        for text, values in given:
            series.setdefault(text, values)
    for text, growth in grown.items():
        series[text] = _counter(growth)
    suffix = "" if spelling == "colon" else ", names with underscores"
    moments = [(at, case.fires) for at in case.at] + [(at, []) for at in case.quiet]
    return {
        "name": f"{rule.alert.name} ({service.name}): {case.case}{suffix}",
        "input_series": [{"series": text, "values": values} for text, values in sorted(series.items())],
        "alert_rule_test": [
            {
                "eval_time": f"{round(evaluate(at, known) * 60)}s",
                "alertname": rule.alert.name,
                "exp_alerts": [
                    _expected(plan, rule, service, case, expected, known)
                    for one in fires for expected in _each(one, rule.settings.uses)
                ],
            }
            for at, fires in moments
        ],
    }


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
            values = [(max(value, least) if isinstance(value, float) else value, minutes) for value, minutes in item.values]
            yield item.model_copy(update={"signal": signal, "each": None, "values": values})


def _each(expected: Expected, planned: Iterable[str]) -> Iterator[Expected]:
    """Expectations, with one for each planned signal where one stands for all of them."""
    if expected.each == "signal":
        for signal in sorted(planned):
            yield expected.model_copy(update={"labels": {**expected.labels, "signal": signal}, "each": None})
    else:
        yield expected


def _filled(labels: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, str]:
    return {name: fill(value, known) for name, value in labels.items()}


def _included(plan: Plan, service: Service, item: Input, inputs: Sequence[Input]) -> list[Input]:
    """Inputs that are a part of this one's value and come from the same raw metric."""
    entry = plan.entry(service.name, item.signal)
    parts = entry.includes if entry is not None else ()
    return [other for other in inputs if other.signal in parts and other.labels == item.labels]


def _expected(
    plan: Plan, rule: Rule, service: Service, case: Case, fires: Expected, known: Mapping[str, Any]
) -> dict[str, Any]:
    labels = dict(rule.labels)
    if rule.alert.signals:
        first = case.input[0]
        full = series_labels(plan, service, _job(plan, service, first.signal)) | _filled(first.labels, known)
        full |= _filled(fires.labels, known)
        labels |= {name: full[name] for name in rule.by if full.get(name)}
    value = evaluate(fires.value, known)
    annotations = {name: expand(text, labels, value) for name, text in rule.annotations.items()}
    return {"exp_labels": dict(sorted(labels.items())), "exp_annotations": annotations}


def _job(plan: Plan, service: Service, signal: str) -> str:
    entry = plan.entry(service.name, signal)
    return recording.source_jobs(plan, service.name, entry)[0] if entry is not None else "k3-engine"


def series_labels(plan: Plan, service: Service, job: str) -> dict[str, str]:
    """Labels that a service's series have in tests: the target's, and the first engine and device."""
    config = plan.config
    identity = {name: config.external_labels.get(name, f"{name}-a") for name in config.identity_labels}
    ascend = service.accelerators is not None and service.accelerators.kind == "ascend"
    device = {"vendor": "ascend", "device": "0-0", "uuid": "0000:C1:00.0", "kind": "error_code"} if ascend else {}
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
    job = _job(plan, service, item.signal)
    places = instances(plan, service, job) if item.each == "replica" else instances(plan, service, job)[:1]
    for place in places:
        labels = {**_target(plan, service, signal, job), "instance": place, **_constants(entry, signal), **item.labels}
        rows = _counted(example_series(signal, entry, labels, spelling), steps)
        for row in rows:
            grows = signal.kind == "counter" or entry.terms[0].type == "summary"
            yield row.series, _values(row, steps, step, grows, item.start)


def _constants(entry: Entry, signal: Signal) -> dict[str, str]:
    """Labels of a signal that are the same on every series of the source."""
    return {name: label.constant for name, label in entry.labels.items() if label.constant and name in signal.labels}


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
    """Values of the signal and for how many scrapes they hold."""
    return [(evaluate(value, known), max(1, round(evaluate(minutes, known) * 60 / step)))
            for value, minutes in item.values]  # fmt: skip


def _plus(whole: Steps, part: Steps, sign: int = 1) -> Steps:
    """Two timelines added, or the second taken off; what is absent in the second is 0."""
    other = [value for value, count in part for _ in range(count)]
    found: Steps = []
    position = 0
    for value, count in whole:
        for _ in range(count):
            more = other[position] if position < len(other) else 0.0
            total = value + sign * more if more == more else value
            position += 1
            if found and (found[-1][0] == total or (found[-1][0] != found[-1][0] and total != total)):
                found[-1] = (total, found[-1][1] + 1)
            else:
                found.append((total, 1))
    return found


def _values(row: ExampleSeries, steps: Steps, step: float, grows: bool, start: float) -> str:
    """Promtool's notation: a gauge stands still, a counter grows by its rate, ``absent`` leaves samples out."""
    parts: list[str] = []
    total, now = start, 0.0
    for value, count in steps:
        if value != value or value < row.from_count:
            parts.append(_gone(count))
            now += count * step
            continue
        raw = row.factor * value + row.offset
        if row.clock:
            parts.append(_run(now + raw, step, count))
        elif grows:
            growth = raw * step
            parts.append(_run(total, growth, count))
            total += growth * count
        else:
            parts.append(_run(raw, 0.0, count))
        now += count * step
    return " ".join(parts)


def _gone(count: int) -> str:
    """A series that a scrape no longer has ends with a marker, as Prometheus writes it."""
    return f"stale _x{count - 1}" if count > 1 else "stale"


def _run(start: float, growth: float, count: int) -> str:
    if growth == 0:
        return f"{number(start)}x{count - 1}" if count > 1 else number(start)
    return f"{number(start)}{'+' if growth > 0 else '-'}{number(abs(growth))}x{count - 1}"


def _histogram(
    plan: Plan, service: Service, item: Input, steps: Steps, each: float, spelling: Spelling
) -> Iterator[tuple[str, Steps]]:
    """Growth of a histogram's counters a scrape: ``each`` observations, as long as the value says; none below 0."""
    entry, signal = plan.entry(service.name, item.signal), plan.catalogue.signals[item.signal]
    assert entry is not None
    job = _job(plan, service, item.signal)
    labels = {**_target(plan, service, signal, job), **_constants(entry, signal), **item.labels}
    found: dict[str, Steps] = {}
    for value, count in steps:
        for row in example_histogram(signal, entry, max(value, 0.0) if value == value else 0.0, labels, spelling):
            growth = row.factor * each if value >= 0 else value if value != value else 0.0
            found.setdefault(row.series, []).append((growth, count))
    yield from found.items()


def _counter(growth: Steps) -> str:
    parts, total = [], 0.0
    for each, count in growth:
        if each != each:
            parts.append(_gone(count))
            continue
        parts.append(_run(total, each, count))
        total += each * count
    return " ".join(parts)


_OPERATORS: Mapping[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "round": round, "sqrt": lambda x: x**0.5}


def evaluate(value: float | str, known: Mapping[str, Any]) -> float:
    """Evaluate arithmetic over ``threshold``, ``params.x``, ``facts['slo.errors']``, ``for_`` (minutes).

    ``absent`` is NaN.
    Raises ValueError for anything else: a rule file may come from somebody else's pack.
    """
    if isinstance(value, int | float):
        return float(value)
    if value == "absent":
        return float("nan")
    try:
        return float(_evaluate(ast.parse(value, mode="eval").body, known))
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"cannot work out {value!r}: {error}") from None


def _evaluate(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return known[node.value.id][node.attr]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        return known[node.value.id][node.slice.value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, known), _evaluate(node.right, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, known))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return _CALLS[node.func.id](*(_evaluate(argument, known) for argument in node.args))
    raise ValueError(f"cannot work out {ast.unparse(node)!r}")
