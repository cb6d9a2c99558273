"""Counters that are read as something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from k3observe.lint.finding import Check, Fault
from k3observe.lint.promql import bare, each, is_counter, names, operator, thresholds
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_EVENTS = re.compile(
    r"(?i).*(error|fail|xid|crash|restart|reset|exception|fault|abort|timeout|evict|lost|oom|panic|preempt|reject)\w*")


def counter_as_gauge(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A counter above 0 stays above 0 until the process ends."""
    if rule.kind != "alert":
        return
    for side, sign, value, _ in thresholds(rule.expr):
        for selector in _plain(side):
            name = next(filter(is_counter, names(selector)), None)
            if name is not None and name not in around.records:
                yield Fault(f"{name} is a counter and only ever grows", f"{side} {sign} {value:g}",
                            f"compare its rate: rate({name}[5m])", rule.at("expr"))  # fmt: skip


def born_at_one(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A series that appears with its first event has no increase yet: the first error is never seen."""
    if rule.kind != "alert" or any(operator(node) == "unless" for node in each(rule.expr, promql.BinaryExpr)):
        return
    for side, sign, value, _ in thresholds(rule.expr):
        for call in each(side, promql.Call):
            counters = [name for s in each(call, promql.VectorSelector) for name in names(s) if is_counter(name)]
            name = next(filter(_EVENTS.fullmatch, counters), None)
            one = 1 if operator(call) == "increase" else 0
            first = (sign == ">" and 0 <= value <= one and value != 1) or (sign == ">=" and 0 < value <= one)
            divided = any(operator(node) == "/" for node in each(side, promql.BinaryExpr))
            if operator(call) in ("increase", "rate", "irate") and name is not None and first and not divided:
                yield Fault("never fires for the first event, with which the series appears", str(call),
                            f"add: or ({name} unless {name} offset 5m) > 0", rule.at("expr"))  # fmt: skip


def rate_of_recorded_sum(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """When one of the added counters restarts, the sum falls and its rate jumps."""
    if rule.kind != "record" or rule.name.endswith(":total"):
        return
    summed = bare(rule.expr)
    if operator(summed) != "sum" or not isinstance(bare(summed.expr), promql.VectorSelector):
        return
    name = next(filter(is_counter, names(bare(summed.expr))), None)
    if name is not None and name not in around.records:
        yield Fault("a sum of counters cannot be rated: a restart of one makes it jump", str(summed),
                    f"record the rate: sum(rate({name}[5m]))", rule.at("expr"))  # fmt: skip


def _plain(expr: Any) -> Iterator[Any]:
    """Selectors whose own value is compared: not inside a function, not a difference, not filtered by ``unless``."""
    expr = bare(expr)
    if isinstance(expr, promql.VectorSelector):
        yield expr
    elif isinstance(expr, promql.AggregateExpr) and operator(expr) in ("sum", "max", "min", "avg"):
        yield from _plain(expr.expr)
    elif isinstance(expr, promql.BinaryExpr) and operator(expr) in ("+", "*", "or", "and"):
        yield from _plain(expr.lhs)
        if operator(expr) != "and":
            yield from _plain(expr.rhs)


CHECKS = (
    Check("promql/counter-as-gauge", counter_as_gauge),
    Check("promql/counter-born-at-one", born_at_one),
    Check("promql/rate-of-recorded-sum", rate_of_recorded_sum),
)
