"""The panels and queries of a dashboard in Grafana's classic JSON, whatever somebody wrote into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.lint.promql import parse, without_variables

MAX_PANELS = 10_000


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard as Grafana reads it: the object of a JSON file."""

    file: str
    data: Mapping[str, Any]

    def panels(self) -> Iterator[Panel]:
        """Panels in order, those inside collapsed rows behind their row."""
        for count, item in enumerate(_objects(self.data.get("panels"))):
            if count >= MAX_PANELS:
                return
            yield Panel(item)
            for inner in _objects(item.get("panels")):
                yield Panel(inner, inside=item)

    def variables(self) -> Iterator[Mapping[str, Any]]:
        """The dashboard's variables."""
        templating = self.data.get("templating")
        yield from _objects(templating.get("list") if isinstance(templating, dict) else None)

    def queries(self) -> Iterator[Query]:
        """PromQL of all panels and annotations."""
        for panel in self.panels():
            yield from panel.queries()
        annotations = self.data.get("annotations")
        for item in _objects(annotations.get("list") if isinstance(annotations, dict) else None):
            inner = item.get("target")
            target = inner if isinstance(inner, dict) else item
            expr = target.get("expr")
            if isinstance(expr, str) and expr.strip():
                yield Query(f"annotation {item.get('name')!r}", target, expr)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel or a row; ``inside`` is the collapsed row that holds it."""

    data: Mapping[str, Any]
    inside: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """The type of the panel's plugin."""
        return str(self.data.get("type"))

    @property
    def name(self) -> str:
        """How a finding names it."""
        return f"panel {self.data.get('title') or self.data.get('id')!r}"

    @property
    def place(self) -> Mapping[str, Any] | None:
        """Its place in the grid."""
        found = self.data.get("gridPos")
        return found if isinstance(found, dict) else None

    def targets(self) -> list[Mapping[str, Any]]:
        """The panel's targets, whatever their data source."""
        return list(_objects(self.data.get("targets")))

    def queries(self) -> Iterator[Query]:
        """The panel's targets that are PromQL."""
        for target in self.targets():
            expr = target.get("expr")
            if isinstance(expr, str) and expr.strip() and not _other_source(target, self.data):
                yield Query(self.name, target, expr, self.kind)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of a dashboard, with the variables that stand in it."""

    where: str
    target: Mapping[str, Any]
    text: str
    kind: str = ""

    def parsed(self) -> Any:
        """The expression with plausible values for the variables; raises ValueError where it is no PromQL."""
        return parse(without_variables(self.text))


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    for item in value if isinstance(value, list) else []:
        if isinstance(item, dict):
            yield item


def _other_source(target: Mapping[str, Any], panel: Mapping[str, Any]) -> bool:
    """Whether the query is for a data source that does not speak PromQL; Loki writes ``expr`` too."""
    for holder in (target, panel):
        source = holder.get("datasource")
        if isinstance(source, dict) and isinstance(source.get("type"), str):
            return source["type"] not in ("prometheus", "datasource", "victoriametrics-metrics-datasource")
    return False
