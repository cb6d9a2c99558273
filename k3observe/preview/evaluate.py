"""Dashboards with their data: what the page needs to draw every panel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from k3observe.preview.prometheus import Prometheus, QueryError, Series, Span
from k3observe.preview.tables import table
from k3observe.preview.variables import choose, expand

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
WORKERS = 6
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Result:
    """Dashboards as the page reads them, and the panels whose queries failed, with the reason."""

    boards: list[dict[str, Any]]
    failures: list[str]


def evaluate(
    documents: Sequence[Mapping[str, Any]], prometheus: Prometheus, span: Span, scrape_interval: float
) -> Result:
    """Run every query of some dashboards. Raises UnreachableError where no Prometheus answers."""
    boards, failures = [], []
    with ThreadPoolExecutor(WORKERS) as pool:
        for document in documents:
            values, variables = choose(document, prometheus, span, scrape_interval)

            def one(panel: Mapping[str, Any], values: Mapping[str, str] = values) -> dict[str, Any]:
                return _panel(panel, prometheus, span, values)

            panels = list(pool.map(one, list(_flat(document["panels"]))))
            failures += [f"{document['title']}: {p['title']}: {p['error']}" for p in panels if "error" in p]
            boards.append({
                "title": document["title"], "uid": document["uid"], "about": document.get("description", ""),
                "panels": panels, "marks": list(_marks(document, prometheus, span, values)),
                "variables": [asdict(variable) for variable in variables],
            })  # fmt: skip
    return Result(boards, failures)


def _flat(panels: Sequence[Mapping[str, Any]], row: int | None = None) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield {**panel, "row": row}
        yield from _flat(panel.get("panels", ()), panel["id"])


def _panel(panel: Mapping[str, Any], prometheus: Prometheus, span: Span, values: Mapping[str, str]) -> dict[str, Any]:
    found = {key: panel[key] for key in ("id", "type", "title", "gridPos", "row", "description", "options", "collapsed")
             if key in panel}  # fmt: skip
    found["field"] = panel.get("fieldConfig", {}).get("defaults", {})
    if panel["type"] in ("row", "text"):
        return found
    try:
        results = [_run(target, prometheus, span, values) for target in panel["targets"]]
    except QueryError as error:
        return found | {"error": str(error)}
    if panel["type"] == "table":
        return found | {"table": table(panel, results)}
    series = [
        {"name": _legend(target, item), "values": [_rounded(value) for value in item.values],
         **_style(panel, _legend(target, item))}
        for target, items in zip(panel["targets"], results, strict=True) for item in items
    ]  # fmt: skip
    cumulative = panel["type"] == "heatmap" and panel["targets"][0]["format"] == "heatmap"
    return found | {"series": _cells(series) if cumulative else series}


def _run(target: Mapping[str, Any], prometheus: Prometheus, span: Span, values: Mapping[str, str]) -> list[Series]:
    expr = expand(target["expr"], values)
    return prometheus.at(expr, span.end) if target["instant"] else prometheus.over(expr, span)


def _legend(target: Mapping[str, Any], series: Series) -> str:
    text = target["legendFormat"]
    if text != "__auto":
        return _LABEL.sub(lambda match: series.labels.get(match[1], ""), text).strip()
    return ", ".join(f"{name}={value}" for name, value in sorted(series.labels.items()) if name != "__name__")


def _style(panel: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fixed colour that an override gives a series, and whether its line is dashed."""
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"]["overrides"]:
        wanted, regular = override["matcher"]["options"], override["matcher"]["id"] == "byRegexp"
        if re.search(wanted.strip("/"), name) if regular else wanted == name:
            for item in override["properties"]:
                if item["id"] == "color":
                    found["colour"] = item["value"]["fixedColor"]
                if item["id"] == "custom.lineStyle":
                    found["dashed"] = item["value"]["fill"] == "dash"
    return found


def _cells(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take each cumulative bucket from the next, as Grafana's format ``heatmap`` does."""
    rows = sorted(series, key=lambda row: float(row["name"].replace("+Inf", "inf")))
    below: list[float | None] = [0.0] * (len(rows[0]["values"]) if rows else 0)
    found = []
    for row in rows:
        cells = [None if v is None else max(0.0, v - (b or 0.0)) for v, b in zip(row["values"], below, strict=True)]
        found.append({**row, "values": [_rounded(cell) for cell in cells]})
        below = row["values"]
    return found


def _marks(
    document: Mapping[str, Any], prometheus: Prometheus, span: Span, values: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """When each annotation begins: where its series appears."""
    for item in document["annotations"]["list"]:
        try:
            found = prometheus.over(expand(item["target"]["expr"], values), span)
        except QueryError:
            continue
        for series in found:
            before: float | None = None
            for time, value in zip(span.times, series.values, strict=True):
                if value is not None and before is None and time != span.start:
                    title = _legend({"legendFormat": item["titleFormat"]}, series)
                    yield {"time": time, "kind": item["name"], "title": title, "colour": item["iconColor"]}
                before = value


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
