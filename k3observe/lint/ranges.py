"""Windows of rates."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser as promql

from k3observe.config.values import Duration
from k3observe.lint.finding import Check, Fault
from k3observe.lint.promql import RATES, each, matchers, names, operator
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings


def rate_window(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """Prometheus 3 leaves the left end out: ``rate(x[15s])`` at an interval of 15 s has one sample and no rate."""
    for call in each(rule.expr, promql.Call):
        for argument in call.args:
            if operator(call) not in RATES or not isinstance(argument, promql.MatrixSelector):
                continue
            interval = _interval(argument.vector_selector, around)
            window = argument.range.total_seconds()
            if window < 4 * interval:
                least = Duration.of(4 * interval)
                yield Fault(f"the window is shorter than 4 intervals of {Duration.of(interval)}", str(call),
                            f"use at least [{least}]", rule.at("expr"))  # fmt: skip


def _interval(selector: object, around: Surroundings) -> float:
    job = matchers(selector).get("job")
    if job is not None and job[1] in around.job_intervals:
        return around.job_intervals[job[1]]
    if any(name in around.records for name in names(selector)):
        return max(around.scrape_interval, around.evaluation_interval)
    return around.scrape_interval


CHECKS = (Check("promql/rate-window", rate_window),)
