"""PromQL as a tree: parsing, walking, and the few questions that checks ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

RATES = frozenset({"rate", "increase", "irate", "delta", "idelta", "deriv"})
COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
_MAX_DEPTH = 250
_COUNTER = re.compile(r".*_(total|count|sum|bucket)")
_RECORDED_RATE = re.compile(r".+:.*(rate|increase)\w*")
_DASHBOARD_VARIABLES = (
    (re.compile(r"\$__(rate_)?interval\b|\$\{__(rate_)?interval\}|\$__range\b|\$\{__range\}"), "5m"),
    (re.compile(r"\$\{\w+(?::\w+)?\}|\$[A-Za-z_]\w*|\[\[\w+\]\]"), "x"),
)


def parse(text: str) -> Any:
    """Parse an expression; raises ValueError with the parser's message."""
    if len(text) > 100_000 or text.count("(") > 2_000:
        raise ValueError("it is too long to be checked")
    expr = promql.parse(text)
    level = [expr]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in children(node)]
        if not level:
            return expr
    raise ValueError("it is nested too deeply to be checked")


def without_variables(text: str) -> str:
    """Put plausible values where Grafana's variables stand, which are no PromQL: ``[$__rate_interval]`` is ``[5m]``."""
    for pattern, value in _DASHBOARD_VARIABLES:
        text = pattern.sub(value, text)
    return text


def children(expr: Any) -> tuple[Any, ...]:
    """Direct sub-expressions, left to right."""
    if isinstance(expr, promql.BinaryExpr):
        return (expr.lhs, expr.rhs)
    if isinstance(expr, promql.Call):
        return tuple(expr.args)
    if isinstance(expr, promql.MatrixSelector):
        return (expr.vector_selector,)
    if isinstance(expr, promql.AggregateExpr):
        return (expr.expr,) if expr.param is None else (expr.param, expr.expr)
    if isinstance(expr, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return (expr.expr,)
    return ()


def nodes(expr: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every sub-expression with what stands above it, outermost first."""
    yield expr, above
    for child in children(expr):
        yield from nodes(child, (*above, expr))


def each(expr: Any, kind: type[Any]) -> Iterator[Any]:
    """Every sub-expression of a kind."""
    return (node for node, _ in nodes(expr) if isinstance(node, kind))


def bare(expr: Any) -> Any:
    """The expression without parentheses around it."""
    while isinstance(expr, promql.ParenExpr):
        expr = expr.expr
    return expr


def operator(expr: Any) -> str:
    """``/`` of a division, ``sum`` of an aggregation, ``rate`` of a call, else nothing."""
    if isinstance(expr, promql.BinaryExpr | promql.AggregateExpr):
        return str(expr.op)
    return str(expr.func.name) if isinstance(expr, promql.Call) else ""


def names(selector: Any) -> tuple[str, ...]:
    """Metric names that a selector means: one, or both spellings of ``{__name__=~"vllm[:_]x"}``; none if any."""
    if selector.name:
        return (str(selector.name),)
    for matcher in selector.matchers.matchers:
        if matcher.name == "__name__" and matcher.op == promql.MatchOp.Equal:
            return (str(matcher.value),)
        if matcher.name == "__name__" and matcher.op == promql.MatchOp.Re:
            text = str(matcher.value)
            return (text.replace("[:_]", ":"), text.replace("[:_]", "_")) if "[:_]" in text else (text,)
    return ()


def matchers(selector: Any) -> dict[str, tuple[str, str]]:
    """Label matchers of a selector: label -> (``=``, ``!=``, ``=~`` or ``!~``, value)."""
    spelled = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return {m.name: (spelled[str(m.op).rpartition(".")[2]], m.value) for m in selector.matchers.matchers}


def reads(expr: Any) -> frozenset[str]:
    """The selectors of an expression, spelled out: equal sets come and go together."""
    return frozenset(str(selector) for selector in each(expr, promql.VectorSelector))


def read_names(expr: Any) -> frozenset[str]:
    """The metric names that an expression reads."""
    return frozenset(name for selector in each(expr, promql.VectorSelector) for name in names(selector))


def says_or(expr: Any) -> bool:
    """Whether the expression names a substitute for series that are not there."""
    return any(operator(node) == "or" for node in each(expr, promql.BinaryExpr))


def number(expr: Any) -> float | None:
    """The value of a number, a negated one or an arithmetic of numbers that stands in the expression."""
    expr = bare(expr)
    if isinstance(expr, promql.NumberLiteral):
        return float(expr.val)
    if isinstance(expr, promql.UnaryExpr):
        inner = number(expr.expr)
        return None if inner is None else -inner
    if isinstance(expr, promql.BinaryExpr) and operator(expr) in ("+", "-", "*", "/"):
        left, right = number(expr.lhs), number(expr.rhs)
        if left is None or right is None or (operator(expr) == "/" and right == 0):
            return None
        return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[operator(expr)]
    return None


def thresholds(expr: Any) -> Iterator[tuple[Any, str, float, tuple[Any, ...]]]:
    """Filtering comparisons with a number: (the side that is compared, operator, number, what stands above).

    The number is always put on the right: ``0.9 < x`` is ``x > 0.9``.
    """
    mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    for node, above in nodes(expr):
        sign = operator(node)
        if not isinstance(node, promql.BinaryExpr) or sign not in COMPARISONS or _is_bool(node):
            continue
        right, left = number(node.rhs), number(node.lhs)
        if right is not None:
            yield node.lhs, sign, right, above
        elif left is not None:
            yield node.rhs, mirrored.get(sign, sign), left, above


def value_path(expr: Any) -> Iterator[Any]:
    """Sub-expressions whose value, not whose mere presence, makes the result: the left of ``and`` and ``unless``."""
    yield expr
    parts = children(expr)
    if isinstance(expr, promql.BinaryExpr) and operator(expr) in ("and", "unless"):
        parts = parts[:1]
    for child in parts:
        yield from value_path(child)


def ratios(expr: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Divisions of one vector by another, and what stands above each."""
    for node, above in nodes(expr):
        if isinstance(node, promql.BinaryExpr) and operator(node) == "/" and reads(node.lhs) and reads(node.rhs):
            yield node, above


def is_rate(expr: Any) -> bool:
    """Whether a rate of change is in the expression, computed there or recorded."""
    return any(
        (isinstance(node, promql.Call) and operator(node) in RATES)
        or (isinstance(node, promql.VectorSelector) and any(_RECORDED_RATE.fullmatch(name) for name in names(node)))
        for node, _ in nodes(expr)
    )


def is_counter(name: str) -> bool:
    """Whether a name is a counter's by Prometheus' conventions; recorded rates end otherwise."""
    return bool(_COUNTER.fullmatch(name)) and not _RECORDED_RATE.fullmatch(name)


def _is_bool(expr: Any) -> bool:
    return expr.modifier is not None and bool(expr.modifier.return_bool)
