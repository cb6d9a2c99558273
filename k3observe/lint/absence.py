"""What is not there: ``absent`` and zeros put in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from k3observe.lint.finding import Check, Fault
from k3observe.lint.labels import NONE, labels
from k3observe.lint.promql import bare, each, matchers, operator
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_ONE = frozenset({"instance", "pod", "service", "model", "model_name", "engine", "node", "host", "hostname", "target"})


def absent_of_many(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """``absent(up{job="vllm"})`` is silent while one of the job's targets is left."""
    for call in each(rule.expr, promql.Call):
        if operator(call) not in ("absent", "absent_over_time"):
            continue
        for selector in each(call, promql.VectorSelector):
            pinned = {label for label, (sign, _) in matchers(selector).items() if sign == "="}
            if not pinned & _ONE:
                yield Fault("is silent while one of several series is left", str(call),
                            "one rule a target, or: group by (service) (last_over_time(up[15m])) unless "
                            "group by (service) (up)", rule.at("expr"))  # fmt: skip


def or_vector(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """The zero of ``vector(0)`` has no labels: it matches no service, or is hidden while any service is there."""
    for node in each(rule.expr, promql.BinaryExpr):
        if operator(node) != "or":
            continue
        for zero, other in ((node.rhs, node.lhs), (node.lhs, node.rhs)):
            if _is_vector(zero) and labels(other, around.records) != NONE:
                yield Fault("a zero without labels stands in for series with labels", str(node),
                            "write `or 0 * EXPECTED`, a series with the same labels", rule.at("expr"))  # fmt: skip


def _is_vector(expr: Any) -> bool:
    expr = bare(expr)
    return operator(expr) == "vector" or (isinstance(expr, promql.BinaryExpr) and _is_vector(expr.lhs))


CHECKS = (Check("promql/absent-of-many", absent_of_many), Check("promql/or-vector", or_vector))
