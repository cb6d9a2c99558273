"""Promtool unit tests of the rendered rules, from the same numbers as the rules.

Inputs are raw series as a scrape of the service's engine has them, so that a test runs through the recording rules as
well: a signal that is recorded wrongly fails here too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from k3observe.catalogue.expression import Spelling
from k3observe.config.model import Service
from k3observe.config.values import Duration
from k3observe.plan import Plan
from k3observe.render import recording
from k3observe.render.alerts import Rule, rate_window
from k3observe.render.arithmetic import evaluate, minutes
from k3observe.render.feed import feed, filled, job_of, series_labels
from k3observe.render.latency import tellable
from k3observe.render.selector import quoted
from k3observe.render.template import expand, holds
from k3observe.rules.model import Case, Expected, Input


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
                "evaluation_interval": str(Duration.of(_evaluated(alike, step))),
                "group_eval_order": order,
                "tests": [{"interval": str(Duration.of(step)), **case} for case in cases],
            }


def strangers(plan: Plan, rules: Sequence[Rule], group: str, recorded: Sequence[str]) -> dict[str, Any] | None:
    """A promtool test file in which another stack has all the troubles of a group's alerts, and none of them fires.

    The other stack's signals are recorded by rules of its own, see ``another``.
    """
    every = min((rule.alert.tests_every.seconds if rule.alert.tests_every else 60.0 for rule in rules), default=60.0)
    step, other = max(60.0, every), another(plan.config.stack)
    tests: list[dict[str, Any]] = []
    needed: set[str] = set()
    for rule in rules:
        service = plan.services[rule.services[0]]
        known = _known(plan, rule, service)
        fit = (case for case in rule.alert.tests if case.fires and case.input and possible(plan, service, case, known))
        case = next(fit, None)
        series = feed(plan, service, case.input, rule.settings.uses, known, step, "colon") if case else None
        if case is None or series is None:
            continue
        inputs = {item.signal for item in case.input}
        needed |= recording.domains(plan, inputs | rule.settings.uses | {*rule.alert.signals})
        mine, theirs = f"stack={quoted(plan.config.stack)}", f"stack={quoted(other)}"
        tests.append({
            "interval": str(Duration.of(step)),
            "name": f"{rule.alert.name} ({service.name}): is quiet about another stack",
            "input_series": [
                {"series": text.replace(mine, theirs), "values": values} for text, values in sorted(series.items())
            ],
            "alert_rule_test": [{
                "eval_time": moment(case.at[0], known), "alertname": rule.alert.name,
                "exp_alerts": [],
            }],
        })  # fmt: skip
    if not tests:
        return None
    domains = [name for name in recorded if name in needed]
    return {
        "rule_files": [*(f"another-stack/{plan.config.stack}-signals-{name}.yml" for name in domains),
                       f"../rules/{group}.yml"],
        "evaluation_interval": str(Duration.of(step)),
        "group_eval_order": [*(f"{other}-signals-{name}" for name in domains), group],
        "tests": tests,
    }  # fmt: skip


def another(stack: str) -> str:
    """The name of the other stack."""
    return f"{stack}-other"


def _step(plan: Plan, rules: Sequence[Rule]) -> float:
    """Seconds between samples and evaluations of a test: as in production, but not finer than the windows need.

    Promtool evaluates every step of hours, which at a scrape interval of a second would take minutes.
    """
    every = rules[0].alert.tests_every
    spans = [span.seconds for rule in rules for span in (rule.settings.window, rule.settings.for_) if span]
    shortest = min((seconds for seconds in spans if seconds), default=60.0)
    return interval(plan, every.seconds if every is not None else min(60.0, shortest / 4))


def _evaluated(rules: Sequence[Rule], step: float) -> float:
    """Seconds between evaluations, which cost nearly all of a test: two samples, where ``for`` and window allow it.

    Cases tell their moments in minutes: evaluations are no rarer, but where an alert says how often (``tests_every``).
    """
    fors = [rule.settings.for_.seconds for rule in rules if rule.settings.for_.seconds]
    windows = [rule.settings.window.seconds for rule in rules if rule.settings.window]
    fits = all(4 * step <= span for span in fors) and all(4 * step < span for span in windows)
    return 2 * step if fits and (step <= 30 or rules[0].alert.tests_every) else step


def interval(plan: Plan, seconds: float) -> float:
    """Seconds between samples of a test: those given, or of production if longer, but what divides a minute."""
    wanted = max(seconds, min(60.0, plan.config.prometheus.slowest))
    return next(step for step in (120.0, 60.0, 30.0, 20.0, 15.0, 10.0, 5.0, 1.0) if step <= wanted)


def circumstances(plan: Plan, service: str) -> dict[str, Any]:
    """What a test case may compute with, whatever alert it is for."""
    facts, finished = plan.facts[service], plan.entry(service, "requests_finished")
    includes = finished.includes if finished is not None else ()
    return {
        "facts": facts,
        "stretch_": rate_window(plan.config).seconds / 300,
        "rate_": rate_window(plan.config).seconds / 60,
        "devices": facts["accelerators_per_node"] or 8,
        # 1 where failed (aborted) requests are not among the finished ones
        "failures_apart": int("requests_failed" not in includes),
        "aborts_apart": int("requests_aborted" not in includes),
        "saturated": plan.thresholds[service].get("KVCacheUsageHigh") or 0.9,
        "latencies": {name: tellable(plan, service, name) for name in ("time_to_first_token", "inter_token_latency")},
    }  # fmt: skip


def _tests(plan: Plan, rule: Rule, step: float) -> Iterator[dict[str, Any]]:
    service = plan.services[rule.services[0]]
    known = _known(plan, rule, service)
    for case in rule.alert.tests:
        yield from _variants(plan, rule, service, case, known, step)


def _known(plan: Plan, rule: Rule, service: Service) -> dict[str, Any]:
    settings = rule.settings
    return circumstances(plan, service.name) | {
        "threshold": settings.threshold, "params": dict(settings.params), "for_": settings.for_.seconds / 60,
        "window": settings.window.seconds / 60 if settings.window else None,
        "code": next(iter(settings.codes), None), "codes": settings.codes, **_around(plan, service.name, rule),
        "over": _over(rule),
    }  # fmt: skip


def _longer(rule: Rule) -> bool:
    """Whether an alert goes on firing for longer after its condition has ended than the shipped one."""
    ours, shipped = rule.settings.keep_firing_for, rule.alert.keep_firing_for
    return ours is not None and ours.seconds > (shipped.seconds if shipped is not None else 0)


def _over(rule: Rule) -> float | None:
    """Just above the threshold; where that is bounded, as shares are by 1, at most half the way there."""
    limit, most = rule.settings.threshold, rule.alert.bounds.below
    return limit if limit is None else min(limit * 1.05, (limit + most) / 2 if most is not None else limit * 1.05)


def _variants(
    plan: Plan, rule: Rule, service: Service, case: Case, known: Mapping[str, Any], step: float
) -> Iterator[dict[str, Any]]:
    if not possible(plan, service, case, known):
        return
    for spelling in spellings(case):
        series = feed(plan, service, case.input, rule.settings.uses, known, step, spelling)
        if series is None:
            return
        if "replicas_expected" in rule.alert.signals:
            series |= _bystanders(plan, rule, service, case, known, step, spelling)
        # what needs not hold for a while fires from the start, before which nothing is
        quiet = [at for at in case.quiet if known["for_"] or minutes(at, known) >= 0]
        if _longer(rule):  # the shipped cases are written for the shipped keep_firing_for
            quiet = [at for at in quiet if minutes(at, known) < min(minutes(other, known) for other in case.at)]
        moments = [(at, case.fires) for at in case.at] + [(at, []) for at in quiet]
        yield {
            "name": f"{rule.alert.name} ({service.name}): {title(case, spelling)}",
            "input_series": [{"series": text, "values": values} for text, values in sorted(series.items())],
            "alert_rule_test": [
                {
                    "eval_time": moment(at, known),
                    "alertname": rule.alert.name,
                    "exp_alerts": [
                        _expected(plan, rule, service, case, expected, known)
                        for one in fires for expected in _each(one, rule.settings.uses)
                    ],
                }
                for at, fires in moments
            ],
        }  # fmt: skip


def _bystanders(
    plan: Plan, rule: Rule, service: Service, case: Case, known: Mapping[str, Any], step: float, spelling: Spelling
) -> dict[str, str]:
    """Engines of the stack's other services: what they are expected to be is recorded whatever a test feeds."""
    found: dict[str, str] = {}
    last = max(minutes(at, known) for at in (*case.at, *case.quiet)) / known["stretch_"] + 1
    for other, alerts in plan.thresholds.items():
        if other != service.name and rule.alert.name in alerts:
            expected = float(plan.facts[other]["replicas_expected"])
            up = Input(signal="engine_up", values=[(expected, last)])
            found |= feed(plan, plan.services[other], [up], (), known, step, spelling) or {}
    return found


def possible(plan: Plan, service: Service, case: Case, known: Mapping[str, Any]) -> bool:
    """Whether a service has all signals of a case, and its condition holds."""
    return all(plan.has(service.name, item.signal) for item in case.input) and holds(case.when, known)


def spellings(case: Case) -> tuple[Spelling, ...]:
    """The spellings of an engine's metric names with which a case is run."""
    return ("colon", "underscore") if case.variants else ("colon",)


def title(case: Case, spelling: Spelling) -> str:
    """The name of a test."""
    return case.case if spelling == "colon" else f"{case.case}, names with underscores"


def moment(at: float | str, known: Mapping[str, Any]) -> str:
    """Minutes as promtool reads them; a minute before a `for` of seconds is the start."""
    return f"{max(0, round(minutes(at, known) * 60))}s"


def _around(plan: Plan, service: str, rule: Rule) -> dict[str, float]:
    """Bounds of the buckets that hold a latency over the threshold (``over_low``, ``over_high``) and under it."""
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


def _each(expected: Expected, planned: Iterable[str]) -> Iterator[Expected]:
    """Expectations, with one for each planned signal where one stands for all of them."""
    if expected.each == "signal":
        for signal in sorted(planned):
            yield expected.model_copy(update={"labels": {**expected.labels, "signal": signal}, "each": None})
    else:
        yield expected


def _expected(
    plan: Plan, rule: Rule, service: Service, case: Case, fires: Expected, known: Mapping[str, Any]
) -> dict[str, Any]:
    labels: dict[str, str] = {}
    if rule.alert.signals:
        first = case.input[0]
        full = series_labels(plan, service, job_of(plan, service, first.signal)) | filled(first.labels, known)
        full |= filled(fires.labels, known)
        labels = {name: full[name] for name in rule.by if full.get(name)}
    series = labels
    labels = {name: text for name, text in {**series, **rule.labels}.items() if text}
    value = evaluate(fires.value, known)
    annotations = {name: expand(text, series, value) for name, text in rule.annotations.items()}
    return {"exp_labels": dict(sorted(labels.items())), "exp_annotations": annotations}
