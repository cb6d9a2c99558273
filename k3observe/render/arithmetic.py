"""Arithmetic in test cases: numbers that follow from a threshold, a parameter or a fact."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_OPERATORS: Mapping[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "round": round, "sqrt": lambda x: x**0.5}


def evaluate(value: float | str, known: Mapping[str, Any]) -> float:
    """Evaluate arithmetic over ``threshold``, ``params.x``, ``facts['slo.errors']``, ``for_`` (minutes).

    ``absent`` is NaN. Raises ValueError for anything else: a rule file may come from somebody else's pack.
    """
    if isinstance(value, int | float):
        return float(value)
    if value == "absent":
        return float("nan")
    try:
        return float(_evaluate(_parsed(value), known))
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"cannot work out {value!r}: {error}") from None


def minutes(value: float | str, known: Mapping[str, Any]) -> float:
    """Evaluate a time of a test case, which is written for intervals of up to 75 s and stretched for longer ones.

    All spans of the rules grow with the intervals by ``stretch_`` but those that a user sets, which stay as they are.
    """
    stretch: float = known["stretch_"]
    if stretch == 1:
        return evaluate(value, known)
    spans = {name: span / stretch for name in ("for_", "window", "rate_", "step_")
             if (span := known.get(name)) is not None}  # fmt: skip
    params = {name: number / stretch if name == "startup_grace" else number
              for name, number in known.get("params", {}).items()}  # fmt: skip
    return stretch * evaluate(value, {**known, **spans, "params": params})


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _evaluate(node: ast.expr, known: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return known[node.value.id][node.attr]
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        return known[node.value.id][node.slice.value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, known), _evaluate(node.right, known))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, known))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and not node.keywords:
        return _CALLS[node.func.id](*(_evaluate(argument, known) for argument in node.args))
    raise ValueError(f"cannot work out {ast.unparse(node)!r}")
