"""Rule files: Prometheus' own, and the PrometheusRule and VMRule objects of Kubernetes operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.config.source import Located
from k3observe.config.values import Duration
from k3observe.lint.finding import Fault, Finding
from k3observe.lint.promql import parse


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its place. ``kind`` is alert or record; ``expr`` is the parsed ``text``."""

    file: str
    line: int
    kind: str
    name: str
    text: str
    expr: Any
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    group: Mapping[str, Any]
    lines: Mapping[str, int]

    def at(self, field: str) -> int:
        """The line of a field such as ``expr`` or ``labels.severity``."""
        return self.lines.get(field, self.line)


def rules(document: Located, root: tuple[str, ...] = ()) -> Iterator[Rule | Finding]:
    """Yield the rules of a document whose groups stand below ``root``, and findings where one cannot be read."""
    data: Any = document.data
    for step in root:
        data = data[step]
    groups = data["groups"] if isinstance(data["groups"], list) else []
    for g, group in enumerate(groups):
        listed = group.get("rules") if isinstance(group, dict) else None
        for r, item in enumerate(listed if isinstance(listed, list) else []):
            yield _rule(document, (*root, "groups", g, "rules", r), group, item)


def _rule(document: Located, path: tuple[str | int, ...], group: Mapping[str, Any], item: Any) -> Rule | Finding:
    line = document.line(path)
    kind = "alert" if isinstance(item, dict) and "alert" in item else "record"
    name = item.get(kind) if isinstance(item, dict) else None
    text = item.get("expr") if isinstance(item, dict) else None
    if not isinstance(name, str) or not isinstance(text, str | int | float):
        fault = Fault("a rule needs alert or record, and expr", item)
        return Finding.of(fault, "rules/shape", document.file, line)
    try:
        expr = parse(str(text))
    except ValueError as error:
        fault = Fault(f"{name}: the expression is no PromQL: {error}", str(text))
        return Finding.of(fault, "promql/syntax", document.file, document.line((*path, "expr")))
    labels, annotations = _texts(item.get("labels")), _texts(item.get("annotations"))
    return Rule(
        document.file, line, kind, name, str(text), expr, labels, annotations, group, _lines(document, path, item)
    )


def _lines(document: Located, path: tuple[str | int, ...], item: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for field, value in item.items():
        found[field] = document.line((*path, field))
        for key in value if isinstance(value, dict) else ():
            found[f"{field}.{key}"] = document.line((*path, field, key))
    return found


def _texts(value: Any) -> dict[str, str]:
    return {key: str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def seconds(value: object) -> float | None:
    """A duration of somebody else's file in seconds; None where it is none."""
    try:
        return Duration.parse(value).seconds
    except ValueError:
        return None
