"""Quantiles and their buckets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from k3observe.lint.finding import Check, Fault
from k3observe.lint.labels import labels
from k3observe.lint.promql import each, matchers, names, operator, thresholds, value_path
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_PLAIN = re.compile(r"\d+(?:\.0)?")


def le_spelling(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """Prometheus 3 stores ``le="120"`` as ``120.0``; Prometheus 2 stores what the exporter wrote."""
    for selector in each(rule.expr, promql.VectorSelector):
        sign, value = matchers(selector).get("le", ("", ""))
        missed = next(_missed(sign, value), None)
        if missed is not None:
            safe = "|".join(f"{part.removesuffix('.0')}([.]0)?" if _PLAIN.fullmatch(part) else part
                            for part in value.replace("[.]", ".").split("|"))  # fmt: skip
            yield Fault(f"misses the bucket where it is spelt {missed}", f'le{sign}"{value}"',
                        f'write le{sign.replace("=~", "=").replace("=", "=~")}"{safe}"', rule.at("expr"))  # fmt: skip


def _missed(sign: str, value: str) -> Iterator[str]:
    if sign in ("=", "!="):
        if _PLAIN.fullmatch(value):
            yield value.removesuffix(".0") if value.endswith(".0") else f"{value}.0"
        return
    if len(value) > 200 or re.search(r"[+*}]\)*[+*{]", value):
        return
    try:
        pattern = re.compile(value)
    except re.error:
        return
    for whole in dict.fromkeys(re.findall(r"\d+", value)):
        if bool(pattern.fullmatch(whole)) != bool(pattern.fullmatch(f"{whole}.0")):
            yield f"{whole}.0" if pattern.fullmatch(whole) else whole


def quantile_without_le(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """``histogram_quantile`` over classic buckets is empty without their label ``le``."""
    for call in _quantiles(rule.expr):
        classic = any(name.endswith("_bucket") or ":" in name for name in _read(call))
        if classic and "le" not in labels(call.args[1], around.records):
            yield Fault("the label le is aggregated away: there is no quantile", str(call),
                        "aggregate by (le, …)", rule.at("expr"))  # fmt: skip


def average_of_quantiles(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """One slow request of an idle pod moves an average of quantiles as much as a thousand of a busy one."""
    for node in each(rule.expr, promql.AggregateExpr):
        if operator(node) in ("avg", "sum") and any(True for _ in _quantiles(node.expr)):
            yield Fault("quantiles cannot be averaged or added", str(node),
                        "aggregate the buckets: histogram_quantile(q, sum by (le, …) (rate(…)))", rule.at("expr"))


def threshold_above_top_bucket(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A quantile beyond the last finite bucket reads as that bucket's bound, however slow requests are."""
    for side, sign, value, _ in thresholds(rule.expr):
        for call in (node for node in value_path(side) if operator(node) == "histogram_quantile"):
            for name in _read(call):
                top = around.top_bounds.get(re.sub(r"_bucket(:\w+)?$", "", name))
                if top is not None and sign in (">", ">=") and (value > top or (value == top and sign == ">")):
                    yield Fault(f"can never fire: the last finite bucket of {name} is {top:g}", f"{sign} {value:g}",
                                "lower the threshold, or watch the share of requests above a bucket",
                                rule.at("expr"))  # fmt: skip


def _quantiles(expr: Any) -> Iterator[Any]:
    return (call for call in each(expr, promql.Call) if operator(call) == "histogram_quantile")


def _read(expr: Any) -> list[str]:
    return [name for selector in each(expr, promql.VectorSelector) for name in names(selector)]


CHECKS = (
    Check("promql/le-spelling", le_spelling),
    Check("promql/quantile-without-le", quantile_without_le),
    Check("promql/average-of-quantiles", average_of_quantiles),
    Check("promql/threshold-above-top-bucket", threshold_above_top_bucket),
)
