"""Quotients of rates: what they do without traffic."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from k3observe.lint.finding import Check, Fault
from k3observe.lint.promql import (
    COMPARISONS,
    bare,
    children,
    each,
    is_counter,
    is_rate,
    matchers,
    names,
    nodes,
    number,
    operator,
    ratios,
    read_names,
    reads,
    says_or,
    thresholds,
    value_path,
)
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_LIVE = re.compile(r".*(running|waiting|queued|pending|active|swapped|in_?flight)(_\w+)?")


def unguarded(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """x/0 is +Inf, which is above every threshold; 0/0 is NaN, which is below none."""
    for ratio, above in ratios(rule.expr):
        if _may_be_zero(ratio.rhs) and not _never_zero(ratio.rhs) and not _floor_above(ratio, above):
            yield Fault("the denominator can be 0: the ratio is then +Inf or NaN", str(ratio.rhs),
                        "divide by (… > 0)", rule.at("expr"))  # fmt: skip


def numerator_absent(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A counter that was never incremented has no series: the ratio is empty when it should be 0."""
    for ratio, above in ratios(rule.expr):
        if not is_rate(ratio.lhs) or not is_rate(ratio.rhs) or _one_histogram(ratio) or says_or(ratio.lhs):
            continue
        if (read := read_names(ratio.lhs)) and read <= around.filled:
            continue
        if rule.kind == "record" or _compared_low(ratio, above):
            yield Fault("the ratio is empty, not 0, while the numerator has no series", str(ratio.lhs),
                        "write (numerator or 0 * denominator) / (denominator > 0)", rule.at("expr"))  # fmt: skip


def low_traffic(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """One failed request of two is 50 %."""
    if rule.kind != "alert":
        return
    for side, sign, _, above in thresholds(rule.expr):
        found = [
            node for node in value_path(side)
            if isinstance(node, promql.BinaryExpr) and operator(node) == "/"
            and is_rate(node.lhs) and is_rate(node.rhs) and not _always_together(node)
        ]  # fmt: skip
        asked_for_traffic = any(operator(node) in ("and", "unless") for node in above)
        if found and sign not in ("==", "!=") and not asked_for_traffic:
            yield Fault("a ratio of few requests swings: the alert asks for no traffic", str(side),
                        "add `and … rate(requests[10m]) > FLOOR`", rule.at("expr"))  # fmt: skip


def average_of_ratios(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A pod with two requests weighs as much as one with two thousand."""
    for node in each(rule.expr, promql.AggregateExpr):
        if operator(node) == "avg" and any(is_rate(ratio) for ratio, _ in ratios(node.expr)):
            yield Fault("an average of ratios gives idle pods the weight of busy ones", str(node),
                        "divide the sums: sum(a) / (sum(b) > 0)", rule.at("expr"))  # fmt: skip


def _may_be_zero(expr: Any) -> bool:
    return is_rate(expr) or any(
        is_counter(name) or _LIVE.fullmatch(name)
        for selector in each(expr, promql.VectorSelector) for name in names(selector)
    )  # fmt: skip


def _never_zero(expr: Any) -> bool:
    """Whether the expression drops zeros: a comparison, a floor, a count."""
    expr = bare(expr)
    sign = operator(expr)
    if isinstance(expr, promql.BinaryExpr):
        if sign in COMPARISONS:
            return expr.modifier is None or not expr.modifier.return_bool
        if sign == "or" or sign == "+":
            return all(_never_zero(side) or (number(side) or 0) > 0 for side in children(expr))
        if sign in ("and", "unless"):
            return _never_zero(expr.lhs) or _never_zero(expr.rhs)
        return _never_zero(expr.lhs) or _never_zero(expr.rhs)
    if isinstance(expr, promql.AggregateExpr):
        return sign in ("count", "group") or _never_zero(expr.expr)
    return sign in ("clamp_min", "count_over_time", "present_over_time")


def _floor_above(ratio: Any, above: tuple[Any, ...]) -> bool:
    """Whether an ``and`` above asks that the denominator is more than something."""
    wanted = reads(ratio.rhs)
    for node in above:
        if operator(node) != "and":
            continue
        for side, sign, _, _ in thresholds(node):
            if sign in (">", ">=", "!=") and wanted & reads(side) and not any(
                inner is ratio for inner, _ in nodes(side)
            ):
                return True
    return False


def _always_together(ratio: Any) -> bool:
    """The same series on both sides, or sum and count of one histogram."""
    left, right = ({re.sub(r"_(sum|count|bucket)\b", "", text) for text in reads(side)} for side in children(ratio))
    return left <= right


def _one_histogram(ratio: Any) -> bool:
    """Whether the numerator's series are those of the denominator, or buckets of the same histogram."""
    left, right = (
        {
            (re.sub(r"_(sum|count|bucket)\b", "", name),
             *sorted(item for item in matchers(selector).items() if item[0] != "le"))
            for selector in each(side, promql.VectorSelector)
            for name in names(selector)
        }
        for side in children(ratio)
    )
    return left <= right


def _compared_low(ratio: Any, above: tuple[Any, ...]) -> bool:
    """Whether the rule fires when the ratio is low: ``ratio < c`` or ``1 - ratio > c``."""
    for index, node in enumerate(above):
        if not isinstance(node, promql.BinaryExpr) or operator(node) not in COMPARISONS:
            continue
        low = operator(node) in ("<", "<=", "==")
        inside = (*above[index + 1 :], ratio)
        if any(inner is bare(node.rhs) or inner is node.rhs for inner in inside):
            low = operator(node) in (">", ">=", "==")
        for parent, child in itertools.pairwise(inside):
            if operator(parent) == "-" and child is parent.rhs:
                low = not low
        return low
    return False


CHECKS = (
    Check("promql/ratio-unguarded", unguarded),
    Check("promql/ratio-numerator-absent", numerator_absent),
    Check("promql/ratio-low-traffic", low_traffic),
    Check("promql/average-of-ratios", average_of_ratios),
)
