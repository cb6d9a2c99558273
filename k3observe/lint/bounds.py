"""Thresholds that can never or always be crossed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from k3observe.lint.finding import Check, Fault
from k3observe.lint.promql import (
    each,
    is_rate,
    matchers,
    names,
    number,
    operator,
    ratios,
    reads,
    thresholds,
    value_path,
)
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_MEMORY = re.compile(
    r"(?i).*(fb_used|(gpu|accelerator|device|npu|vram|hbm|chip)\w*(mem\w*us|us\w*mem|mem\w*util|mem\w*ratio)).*")
_ABOVE, _BELOW = (">", ">="), ("<", "<=")


def memory_reserved(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """An engine reserves its share of device memory at start and keeps it: a threshold below it fires for ever."""
    for side, sign, value, above in thresholds(rule.expr):
        share = value / 100 if value > 1 else value
        if any(operator(node) in ("and", "unless") for node in above):
            continue  # one of several conditions
        read = {name for node in value_path(side) if isinstance(node, promql.VectorSelector) for name in names(node)}
        reserved = _reserved(side, around)
        if sign in _ABOVE and 0.5 <= share <= reserved and any(map(_MEMORY.fullmatch, read)):
            yield Fault(f"always fires: the engine reserves {reserved:g} of the memory by itself",
                        f"{sign} {value:g}", "set it above the engine's --gpu-memory-utilization",
                        rule.at("expr"))  # fmt: skip


def _reserved(side: Any, around: Surroundings) -> float:
    """What the engines reserve whose service the selectors take; of any service where they do not say."""
    found = [around.reserved]
    for selector in each(side, promql.VectorSelector):
        sign, value = matchers(selector).get("service", ("=~", ".*"))
        try:
            fits = re.compile(value if "~" in sign else re.escape(value)).fullmatch
        except re.error:
            continue
        shares = [share for name, share in around.reserved_by.items() if bool(fits(name)) != sign.startswith("!")]
        found.append(max(shares, default=around.reserved))
    return min(found)


def unscaled_variance(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """The variance of a rate grows with the square of the traffic: 0.3 is nothing, or everything."""
    for side, sign, value, _ in thresholds(rule.expr):
        for node in value_path(side):
            spread = operator(node) in ("stdvar", "stddev", "stdvar_over_time", "stddev_over_time")
            if spread and is_rate(node) and not any(_within(node, ratio.lhs) for ratio, _ in ratios(side)):
                yield Fault("the variance of a rate grows with traffic", f"{node} {sign} {value:g}",
                            "divide by the mean: stdvar(r) / (avg(r) > 0)^2", rule.at("expr"))  # fmt: skip


def impossible_ratio(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """max/mean is at least 1 and mean/max at most 1, whatever is measured."""
    for side, sign, value, _ in thresholds(rule.expr):
        for ratio, _ in ratios(side):
            tops, bottoms = (_aggregations(part) for part in (ratio.lhs, ratio.rhs))
            if reads(ratio.lhs) != reads(ratio.rhs) or _scaled(side):
                continue
            never = always = False
            if tops == {"max"} and bottoms <= {"avg", "min"}:
                never = (sign == "<" and value <= 1) or (sign == "<=" and value < 1)
                always = (sign == ">=" and value <= 1) or (sign == ">" and value < 1)
            elif bottoms == {"max"} and tops <= {"avg", "min"}:
                never = (sign == ">" and value >= 1) or (sign == ">=" and value > 1)
                always = (sign == "<=" and value >= 1) or (sign == "<" and value > 1)
            if never or always:
                verdict = "can never be true" if never else "is always true"
                yield Fault(f"{verdict}: max is never below the mean", f"{ratio} {sign} {value:g}",
                            "a balance is avg / (max > 0), from 0 (one does all) to 1 (even)",
                            rule.at("expr"))  # fmt: skip


def percent_of_share(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """Engines call it ``_perc`` and mean 0 to 1."""
    for side, sign, value, _ in thresholds(rule.expr):
        read = [name for node in value_path(side) if isinstance(node, promql.VectorSelector) for name in names(node)]
        shares = [name for name in read if name in around.shares]
        scaled = any((number(node) or 0) >= 10 for node in value_path(side))
        if value > 1 and sign in _ABOVE and shares and len(shares) == len(read) and not scaled \
                and not any(operator(node) in ("sum", "count", "/") for node in value_path(side)):
            yield Fault(f"can never fire: {shares[0]} reads 0 to 1", f"{sign} {value:g}",
                        f"write {value / 100:g}", rule.at("expr"))  # fmt: skip


def _scaled(side: Any) -> bool:
    """Whether arithmetic with a number changes the ratio before it is compared: ``100 * max / avg``."""
    return any(
        operator(node) in ("+", "-", "*", "/", "^", "%") and (number(node.lhs), number(node.rhs)) != (None, None)
        for node in each(side, promql.BinaryExpr)
    )


def _within(inner: Any, outer: Any) -> bool:
    return any(node is inner for node in value_path(outer))


def _aggregations(expr: Any) -> set[str]:
    return {operator(node) for node in each(expr, promql.AggregateExpr) if operator(node) in ("max", "avg", "min")}


CHECKS = (
    Check("promql/memory-reserved", memory_reserved),
    Check("promql/unscaled-variance", unscaled_variance),
    Check("promql/impossible-ratio", impossible_ratio),
    Check("promql/percent-of-share", percent_of_share),
)
