"""Which labels the result of an expression can carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import promql_parser as promql

_GONE_WITH_LE = frozenset({"histogram_quantile", "histogram_fraction", "histogram_quantiles"})


@dataclass(frozen=True, slots=True)
class Labels:
    """A set of label names: exactly ``names``, or, if ``open``, any label but ``names``."""

    names: frozenset[str]
    open: bool = False

    def __contains__(self, name: str) -> bool:
        return (name in self.names) is not self.open

    def only(self, names: Iterable[str]) -> Labels:
        """Those of ``names`` that may be there."""
        return Labels(frozenset(name for name in names if name in self))

    def without(self, names: Iterable[str]) -> Labels:
        """All but ``names``."""
        return Labels(self.names | set(names), True) if self.open else Labels(self.names - set(names))

    def also(self, names: Iterable[str]) -> Labels:
        """These and ``names``."""
        return Labels(self.names - set(names), True) if self.open else Labels(self.names | set(names))

    def union(self, other: Labels) -> Labels:
        """What either may carry."""
        if self.open and other.open:
            return Labels(self.names & other.names, True)
        if self.open:
            return self.also(other.names)
        return other.also(self.names)


ANY = Labels(frozenset(), True)
NONE = Labels(frozenset())


def labels(expr: Any, records: Mapping[str, Labels]) -> Labels:
    """Labels that the result may carry; ``records`` are those of recorded series."""
    if isinstance(expr, promql.VectorSelector):
        return records.get(expr.name or "", ANY)
    if isinstance(expr, promql.MatrixSelector):
        return labels(expr.vector_selector, records)
    if isinstance(expr, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return labels(expr.expr, records)
    if isinstance(expr, promql.AggregateExpr):
        return _aggregated(expr, records)
    if isinstance(expr, promql.BinaryExpr):
        return _combined(expr, records)
    if isinstance(expr, promql.Call):
        return _called(expr, records)
    return NONE


def _aggregated(expr: Any, records: Mapping[str, Labels]) -> Labels:
    inner = labels(expr.expr, records)
    if str(expr.op) in ("topk", "bottomk", "limitk", "limit_ratio"):
        return inner
    if expr.modifier is None:
        kept = NONE
    elif expr.modifier.type == promql.AggModifierType.By:
        kept = inner.only(expr.modifier.labels)
    else:
        kept = inner.without(expr.modifier.labels)
    return kept.also([expr.param.val]) if str(expr.op) == "count_values" else kept


def _combined(expr: Any, records: Mapping[str, Labels]) -> Labels:
    left, right = labels(expr.lhs, records), labels(expr.rhs, records)
    operator, modifier = str(expr.op), expr.modifier
    if operator == "or":
        return left.union(right)
    if operator in ("and", "unless") or _is_scalar(expr.rhs):
        return left
    if _is_scalar(expr.lhs):
        return right
    if modifier is not None and modifier.card == promql.VectorMatchCardinality.ManyToOne:
        return left.also(modifier.group_labels or ())
    if modifier is not None and modifier.card == promql.VectorMatchCardinality.OneToMany:
        return right.also(modifier.group_labels or ())
    return _matched(left, modifier)


def _matched(left: Labels, modifier: Any) -> Labels:
    """One-to-one: what was matched on, or what was not ignored."""
    if modifier is None or modifier.matching is None:
        return left
    if modifier.matching.type == promql.LabelModifierType.Include:
        return left.only(modifier.matching.labels)
    return left.without(modifier.matching.labels)


def _called(expr: Any, records: Mapping[str, Labels]) -> Labels:
    name = expr.func.name
    if name in ("absent", "absent_over_time"):
        return Labels(frozenset(m.name for m in _matchers(expr.args[0]) if m.op == promql.MatchOp.Equal))
    if name in ("vector", "scalar", "time", "pi"):
        return NONE
    vectors = [arg for arg in expr.args if not _is_scalar(arg)]
    if not vectors:
        return NONE
    inner = labels(vectors[0], records)
    if name in _GONE_WITH_LE:
        return inner.without(["le"])
    if name in ("label_replace", "label_join"):
        return inner.also([expr.args[1].val])
    return ANY if name == "info" else inner


def _matchers(expr: Any) -> list[Any]:
    while isinstance(expr, promql.ParenExpr | promql.SubqueryExpr):
        expr = expr.expr
    selector = expr.vector_selector if isinstance(expr, promql.MatrixSelector) else expr
    return list(selector.matchers.matchers) if isinstance(selector, promql.VectorSelector) else []


def _is_scalar(expr: Any) -> bool:
    if isinstance(expr, promql.ParenExpr | promql.UnaryExpr):
        return _is_scalar(expr.expr)
    if isinstance(expr, promql.BinaryExpr):
        return _is_scalar(expr.lhs) and _is_scalar(expr.rhs)
    if isinstance(expr, promql.Call):
        return expr.func.name in ("scalar", "time", "pi")
    return isinstance(expr, promql.NumberLiteral | promql.StringLiteral)
