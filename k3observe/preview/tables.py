"""A table panel: its queries merged by their labels, columns renamed, ordered and hidden, as Grafana does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3observe.preview.prometheus import Series


def table(panel: Mapping[str, Any], results: Sequence[Sequence[Series]]) -> dict[str, Any]:
    """Columns (heading, unit, thresholds) and rows of a panel."""
    rows: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
    for target, found in zip(panel["targets"], results, strict=True):
        name = "Value" if len(results) == 1 else f"Value #{target['refId']}"
        for series in found:
            labels = {key: value for key, value in series.labels.items() if key != "__name__"}
            rows.setdefault(frozenset(labels.items()), dict(labels))[name] = series.values[0]
    organize = next(item["options"] for item in panel["transformations"] if item["id"] == "organize")
    names, hidden = organize["renameByName"], organize["excludeByName"]
    present = {key for row in rows.values() for key in row}
    keys = [key for key in sorted(names, key=lambda key: organize["indexByName"].get(key, 99)) if key in present]
    keys += sorted(present - set(names) - {key for key, hide in hidden.items() if hide})
    columns = [_column(panel, names.get(key, key)) for key in keys]
    cells = [[row.get(key) for key in keys] for row in rows.values()]
    return {"columns": columns, "rows": _sorted(panel, columns, cells)}


def _column(panel: Mapping[str, Any], title: str) -> dict[str, Any]:
    column: dict[str, Any] = {"title": title}
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == title:
            properties = {item["id"]: item["value"] for item in override["properties"]}
            column |= {
                "unit": properties.get("unit", ""), "decimals": properties.get("decimals"),
                "steps": properties.get("thresholds", {}).get("steps", []),
                "states": {key: state for mapping in properties.get("mappings", [])
                           for key, state in mapping["options"].items()},
            }  # fmt: skip
    return column


def _sorted(panel: Mapping[str, Any], columns: list[dict[str, Any]], rows: list[list[Any]]) -> list[list[Any]]:
    wanted = panel["options"].get("sortBy") or [{"displayName": columns[0]["title"] if columns else "", "desc": False}]
    index = next((i for i, column in enumerate(columns) if column["title"] == wanted[0]["displayName"]), None)
    if index is None:
        return rows
    return sorted(rows, key=lambda row: (row[index] is None, _key(row[index])), reverse=wanted[0]["desc"])


def _key(value: Any) -> tuple[int, float, str]:
    """Numbers by size, those in labels too; then texts."""
    try:
        return (0, float(value), "")
    except (TypeError, ValueError):
        return (1, 0.0, str(value))
