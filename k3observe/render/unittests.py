"""Promtool unit tests of the rendered alerts, from the same numbers as the alerts.

Inputs are raw series as a scrape of the service's engine has them, so that a test runs through the recording rules as
well: a signal that is recorded wrongly fails here too.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.expression import ExampleSeries, Spelling, example_histogram, example_series
from k3observe.catalogue.model import Entry, Signal
from k3observe.config.model import Service
from k3observe.plan import Plan
from k3observe.render.alerts import Rule
from k3observe.render.prometheus import labels as target_labels
from k3observe.render.template import expand, number
from k3observe.rules.model import Case, Expected, Input

_DEFAULTS = {
    "engine": "0", "rank": "0", "device": "0", "vendor": "nvidia", "uuid": "GPU-5e1f0000-0000-4000-8000-000000000000",
    "kind": "xid", "scope": "rank", "phase": "all", "formula": "mean_of_layers", "tier": "device", "link": "0",
    "reason": "hw_thermal", "collector": "experts", "source": "plugin",
}  # fmt: skip


def documents(plan: Plan, rules: Sequence[Rule], rule_files: list[str], order: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield (alert, promtool test file) for the rules of one alert each."""
    interval = plan.config.prometheus.scrape_interval
    by_alert: dict[str, list[Rule]] = {}
    for rule in rules:
        by_alert.setdefault(rule.alert.name, []).append(rule)
    for name, alike in by_alert.items():
        cases = [test for rule in alike for test in _tests(plan, rule)]
        if cases:
            yield name, {
                "rule_files": rule_files,
                "evaluation_interval": str(plan.config.prometheus.evaluation_interval),
                "group_eval_order": order,
                "tests": [{"interval": str(interval), **case} for case in cases],
            }


def _tests(plan: Plan, rule: Rule) -> Iterator[dict[str, Any]]:
    service = plan.services[rule.services[0]]
    for case in rule.alert.tests:
        spellings: tuple[Spelling, ...] = ("colon", "underscore") if case.variants else ("colon",)
        for spelling in spellings:
            if case.input and not all(plan.entry(service.name, item.signal) for item in case.input):
                continue
            yield _test(plan, rule, service, case, spelling)


def _test(plan: Plan, rule: Rule, service: Service, case: Case, spelling: Spelling) -> dict[str, Any]:
    known = {
        "threshold": rule.settings.threshold, "params": dict(rule.settings.params), "facts": dict(rule.settings.facts),
        "for_": rule.settings.for_.seconds / 60,
    }  # fmt: skip
    step = plan.config.prometheus.scrape_interval.seconds
    series: dict[str, str] = {}
    for item in case.input:
        for text, values in _series(plan, service, item, known, step, spelling):
            series.setdefault(text, values)
    suffix = "" if spelling == "colon" else ", names with underscores"
    return {
        "name": f"{rule.alert.name} ({service.name}): {case.case}{suffix}",
        "input_series": [{"series": text, "values": values} for text, values in sorted(series.items())],
        "alert_rule_test": [
            {
                "eval_time": f"{round(evaluate(at, known) * 60)}s",
                "alertname": rule.alert.name,
                "exp_alerts": [_expected(plan, rule, service, case, fires, known) for fires in case.fires],
            }
            for at in case.at
        ],
    }


def _expected(
    plan: Plan, rule: Rule, service: Service, case: Case, fires: Expected, known: Mapping[str, Any]
) -> dict[str, Any]:
    labels = dict(rule.labels)
    if rule.alert.signals:
        first = case.input[0].labels if case.input else {}
        full = series_labels(plan, service) | dict(first) | dict(fires.labels)
        labels |= {name: full[name] for name in rule.by if full.get(name)}
    value = evaluate(fires.value, known)
    annotations = {name: expand(text, labels, value) for name, text in rule.annotations.items()}
    return {"exp_labels": dict(sorted(labels.items())), "exp_annotations": annotations}


def series_labels(plan: Plan, service: Service) -> dict[str, str]:
    """Labels that a service's series have in tests: the target's, and the first engine and device."""
    config = plan.config
    identity = {name: config.external_labels.get(name, f"{name}-a") for name in config.identity_labels}
    ascend = service.accelerators is not None and service.accelerators.kind == "ascend"
    device = {"vendor": "ascend", "device": "0-0", "uuid": "0000:C1:00.0", "kind": "error_code"} if ascend else {}
    instance = service.targets[0] if service.targets else f"{service.name}-0:8000"
    return {
        **_DEFAULTS, **device, **identity, "instance": instance,
        "model_name": str(plan.facts[service.name]["model_name"]), **target_labels(config, service, "k3-engine"),
    }  # fmt: skip


def _series(
    plan: Plan, service: Service, item: Input, known: Mapping[str, Any], step: float, spelling: Spelling
) -> Iterator[tuple[str, str]]:
    entry, signal = plan.entry(service.name, item.signal), plan.catalogue.signals[item.signal]
    assert entry is not None
    labels = _target(plan, service, signal, entry) | dict(item.labels)
    steps = [(evaluate(value, known), max(1, round(evaluate(minutes, known) * 60 / step)))
             for value, minutes in item.values]  # fmt: skip
    if signal.kind == "histogram":
        yield from _histogram(signal, entry, labels, steps, step, spelling)
        return
    for row in example_series(signal, entry, labels, spelling):
        yield row.series, _values(row, signal.kind == "counter", steps, step, entry.terms[0].type == "summary")


def _target(plan: Plan, service: Service, signal: Signal, entry: Entry) -> dict[str, str]:
    """Labels of the target that serves this entry, and of the signal."""
    full = series_labels(plan, service)
    source = plan.catalogue.sources[entry.source]
    job = "k3-engine" if entry.source == "prometheus" else source.job
    names = {*target_labels(plan.config, service, job), *plan.config.identity_labels, "instance", *signal.labels}
    names.discard("le")
    return {name: full[name] for name in names if name in full} | {"job": job}


def _values(row: ExampleSeries, counter: bool, steps: Sequence[tuple[float, int]], step: float, summary: bool) -> str:
    """Promtool's notation: a gauge stands still, a counter grows by its rate, ``absent`` leaves samples out."""
    parts: list[str] = []
    total, now = 0.0, 0.0
    for value, count in steps:
        if value != value:
            parts.append(f"_x{count}")
            now += count * step
            continue
        raw = row.factor * value + row.offset
        if row.clock:
            parts.append(_run(now + raw, step, count))
        elif counter or summary:
            growth = raw * step
            parts.append(_run(total, growth, count))
            total += growth * count
        else:
            parts.append(_run(raw, 0.0, count))
        now += count * step
    return " ".join(parts)


def _run(start: float, growth: float, count: int) -> str:
    if growth == 0:
        return f"{number(start)}x{count - 1}" if count > 1 else number(start)
    return f"{number(start)}{'+' if growth > 0 else '-'}{number(abs(growth))}x{count - 1}"


def _histogram(
    signal: Signal, entry: Entry, labels: Mapping[str, str], steps: Sequence[tuple[float, int]], step: float,
    spelling: Spelling,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """One request a second, each as long as the value says."""
    totals: dict[str, float] = {}
    parts: dict[str, list[str]] = {}
    for value, count in steps:
        absent = value != value
        for row in example_histogram(signal, entry, 0.0 if absent else max(value, 0.0), labels, spelling):
            growth = 0.0 if value < 0 else row.factor * step
            start = totals.get(row.series, 0.0)
            parts.setdefault(row.series, []).append(f"_x{count}" if absent else _run(start, growth, count))
            totals[row.series] = start if absent else start + growth * count
    for series, runs in parts.items():
        yield series, " ".join(runs)


_OPERATORS: Mapping[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "round": round, "sqrt": lambda x: x**0.5}


def evaluate(value: float | str, known: Mapping[str, Any]) -> float:
    """Evaluate arithmetic over ``threshold``, ``params.x``, ``facts.x`` and ``for_`` (minutes); ``absent`` is NaN.

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
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, known), _evaluate(node.right, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, known))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return _CALLS[node.func.id](*(_evaluate(argument, known) for argument in node.args))
    raise ValueError(f"cannot work out {ast.unparse(node)!r}")
