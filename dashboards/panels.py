"""Panels as JSON of Grafana 11 to 13, in the shapes that their plugins save. Import this module only to render."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grafanalib import core

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import BLUE, GREEN, Panel, Query, panel_id
from k3observe.dashboards.scope import Scope, interval
from k3observe.render.alerts import dashboard_uid

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def given(**fields: Any) -> dict[str, Any]:
    """Those that are not None: Grafana's types know no null but the value of a threshold's first step."""
    return {key: value for key, value in fields.items() if value is not None}


_CLASSES = {
    "timeseries": core.TimeSeries, "stat": core.Stat, "gauge": core.GaugePanel, "bargauge": core.BarGauge,
    "table": core.Table, "heatmap": core.Heatmap, "state-timeline": core.StateTimeline, "text": core.Text,
}  # fmt: skip


def panel_json(scope: Scope, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    """A panel at its place in the grid."""
    made = _CLASSES[panel.kind](title=scope.text(panel.title), id=panel_id(panel.key), gridPos=place).to_json_data()
    found: dict[str, Any] = {key: made[key] for key in ("id", "type", "title", "gridPos")}
    found["description"] = scope.about(panel)
    if panel.kind == "text":
        assert panel.content is not None
        return found | {"options": {"mode": "markdown", "content": panel.content(scope.plan)}}
    queries = scope.queries(panel)
    defaults, overrides = _FIELDS[panel.kind](scope, panel) if panel.kind in _FIELDS else _fields(scope, panel), []
    if panel.kind == "timeseries":
        lines = scope.drawn(panel)[1]
        queries += [query for query, _ in lines]
        overrides += [_line_override(str(query.legend), colour) for query, colour in lines]
    defaults["noValue"] = scope.idle(panel)
    if panel.kind == "table":
        overrides = list(_column_overrides(scope, panel, queries))
        found["transformations"] = _table_transformations(scope, panel, queries)
    names = [scope.legend(panel, query.legend) for query in queries]
    for name, colour in panel.colours.items():
        foreign = scope.language == "en" and not name.isascii()
        if foreign or not any(legend.endswith((name, "}}")) for legend in names):
            continue
        # the name alone, or behind that of its service
        overrides.append({"matcher": {"id": "byRegexp", "options": f"/(^| ){name}$/"},
                          "properties": [{"id": "color", "value": {"mode": "fixed",
                                                                   "fixedColor": colour}}]})  # fmt: skip
    found |= {
        "datasource": SOURCE,
        "targets": [_target(scope, panel, query, index) for index, query in enumerate(queries)],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": _OPTIONS[panel.kind](scope, panel),
    }
    if links := list(_runbooks(scope, panel)):
        found["links"] = links
    return found


def _line_override(name: str, colour: str) -> dict[str, Any]:
    """A limit among the series: dashed, without an area below it."""
    return {"matcher": {"id": "byName", "options": name}, "properties": [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}},
        {"id": "custom.fillOpacity", "value": 0},
    ]}  # fmt: skip


def _target(scope: Scope, panel: Panel, query: Query, index: int) -> dict[str, Any]:
    # a tile shows what is true now: the last value of a range would outlive the engine it came from
    instant = panel.kind in ("stat", "gauge", "bargauge", "table")
    cells = panel.kind == "heatmap" and "_bucket:" in query.expr
    made = core.Target(expr=scope.expr(query.expr), refId=chr(ord("A") + index), instant=instant, datasource=SOURCE,
                       legendFormat=scope.legend(panel, query.legend) or "__auto",
                       format="table" if panel.kind == "table" else "heatmap" if cells else "time_series",
                       ).to_json_data()  # fmt: skip
    keys = ("datasource", "expr", "format", "instant", "legendFormat", "refId")
    # of its own, for a data source that was not told how often it is written to
    return {**{key: made[key] for key in keys}, "range": not instant, "editorMode": "code",
            "interval": str(interval(scope.plan.config))}  # fmt: skip


def _runbooks(scope: Scope, panel: Panel) -> Iterator[dict[str, Any]]:
    base = scope.plan.config.runbook_base_url
    if base:
        armed = {armed.alert.name for armed in scope.plan.armed}
        for name in panel.alerts:
            if name in armed:
                yield core.DashboardLink(
                    type="link", title=f"Runbook: {name}", uri=f"{base.rstrip('/')}/{name}", icon="doc",
                    targetBlank=True,
                    keepTime=False,
                ).to_json_data()  # fmt: skip


def _steps(limits: list[tuple[float, str]], good: str, fine: str = GREEN) -> list[dict[str, Any]]:
    """Grafana's thresholds: each colour holds from its value upwards."""
    if good == "low":
        return [{"color": fine, "value": None}, *({"color": colour, "value": value} for value, colour in limits)]
    colours = [colour for _, colour in limits] + [fine]
    values: list[float | None] = [None, *(value for value, _ in limits)]
    return [{"color": colour, "value": value} for colour, value in zip(colours, values, strict=True)]


def _fields(scope: Scope, panel: Panel) -> dict[str, Any]:
    limits = scope.limits(panel.limits)
    judged = {"mode": "thresholds"} if limits else {"mode": "fixed", "fixedColor": BLUE}
    return {
        **given(decimals=panel.decimals, min=panel.low, max=panel.high), "unit": panel.unit, "color": judged,
        "thresholds": {"mode": "absolute", "steps": _steps(limits, panel.good, GREEN if limits else BLUE)},
        "mappings": _mappings(scope, panel.states),
    }  # fmt: skip


def _line_fields(scope: Scope, panel: Panel) -> dict[str, Any]:
    limits = scope.drawn(panel)[0]
    return {
        **given(decimals=panel.decimals, min=panel.low, max=panel.high), "unit": panel.unit,
        "color": {"mode": "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": _steps(limits, "low", "transparent")},
        "mappings": [],
        "custom": {
            "drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "showPoints": "never", "pointSize": 4,
            "fillOpacity": 25 if panel.stacked else 8 if not panel.many else 0, "gradientMode": "none",
            "spanNulls": False, "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "axisPlacement": "auto", "axisLabel": "", "scaleDistribution": {"type": "linear"},
            "thresholdsStyle": {"mode": "dashed" if limits else "off"},
            "hideFrom": {"legend": False, "tooltip": False, "viz": False},
        },
    }  # fmt: skip


def _mappings(scope: Scope, states: Mapping[int, tuple[Text, str]]) -> list[dict[str, Any]]:
    options = {str(value): {"text": scope.text(text), "color": colour, "index": index}
               for index, (value, (text, colour)) in enumerate(states.items())}  # fmt: skip
    return [{"type": "value", "options": options}] if options else []


def _state_fields(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {
        "color": {"mode": "thresholds"}, "mappings": _mappings(scope, panel.states),
        "thresholds": {"mode": "absolute", "steps": [{"color": BLUE, "value": None}]},
        "custom": {"fillOpacity": 80, "lineWidth": 0, "hideFrom": {"legend": False, "tooltip": False, "viz": False}},
    }  # fmt: skip


def _heat_fields(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {"custom": {"scaleDistribution": {"type": "linear"},
                       "hideFrom": {"legend": False, "tooltip": False, "viz": False}}}  # fmt: skip


def _table_fields(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False},
            "color": {"mode": "thresholds"}, "mappings": [],
            "thresholds": {"mode": "absolute", "steps": [{"color": "text", "value": None}]}}  # fmt: skip


_FIELDS = {"timeseries": _line_fields, "state-timeline": _state_fields, "heatmap": _heat_fields, "table": _table_fields}


def _column_overrides(scope: Scope, panel: Panel, queries: list[Query]) -> Iterator[dict[str, Any]]:
    for index, (label, title) in enumerate(panel.columns.items()):
        if index == 0 and panel.link:
            uid = dashboard_uid(scope.plan.config, panel.link)
            url = f"/d/{uid}?var-datasource=${{datasource}}&var-{label}=${{__value.raw}}&${{__url_time_range}}"
            yield {"matcher": {"id": "byName", "options": scope.text(title)},
                   "properties": [{"id": "links", "value": [{"title": scope.text(panel.title),
                                                             "url": url}]}]}  # fmt: skip
    for query in queries:
        if query.column is not None:
            properties: list[dict[str, Any]] = [{"id": "unit", "value": query.unit or panel.unit}]
            if (decimals := query.decimals if query.decimals is not None else panel.decimals) is not None:
                properties.append({"id": "decimals", "value": decimals})
            if mappings := _mappings(scope, query.states):
                properties.append({"id": "mappings", "value": mappings})
            if limits := scope.limits(query.limits):
                properties += [
                    {"id": "thresholds", "value": {"mode": "absolute", "steps": _steps(limits, query.good, "text")}},
                    {"id": "custom.cellOptions", "value": {"type": "color-text"}},
                ]
            yield {"matcher": {"id": "byName", "options": scope.text(query.column)}, "properties": properties}


def _table_transformations(scope: Scope, panel: Panel, queries: list[Query]) -> list[dict[str, Any]]:
    values = {("Value" if len(queries) == 1 else f"Value #{chr(ord('A') + index)}"): scope.text(query.column)
              for index, query in enumerate(queries) if query.column is not None}  # fmt: skip
    names = {**{label: scope.text(title) for label, title in panel.columns.items()}, **values}
    hidden = {"Time": True, "__name__": True, "stack": True}
    if not values:
        hidden["Value"] = True
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {
            "excludeByName": hidden, "renameByName": names, "includeByName": {},
            "indexByName": {name: index for index, name in enumerate(names)}}},
    ]  # fmt: skip


def _reduced() -> dict[str, Any]:
    return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}


def _stat_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {**_reduced(), "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "textMode": "value_and_name" if panel.named else "auto", "wideLayout": True, "showPercentChange": False,
            "percentChangeColorMode": "standard"}  # fmt: skip


def _gauge_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {**_reduced(), "orientation": "auto", "showThresholdLabels": False, "showThresholdMarkers": True,
            "sizing": "auto", "minVizWidth": 75, "minVizHeight": 75}  # fmt: skip


def _bar_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {**_reduced(), "orientation": "horizontal", "displayMode": "basic", "valueMode": "color",
            "namePlacement": "auto", "showUnfilled": True, "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16,
            "maxVizHeight": 300, "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom",
                                            "calcs": []}}  # fmt: skip


def _table_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}
    ranked = next((query for query in panel.queries if query.order), None)
    if ranked is not None and ranked.column is not None:
        found["sortBy"] = [{"displayName": scope.text(ranked.column), "desc": ranked.order == "descending"}]
    return found


def _heat_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    buckets = any("_bucket:" in query.expr for query in panel.queries)
    colour: dict[str, Any] = {"mode": "scheme", "scheme": "Viridis" if buckets else "Inferno", "fill": BLUE,
                              "steps": 64,
                              "exponent": 0.5, "scale": "exponential", "reverse": False}  # fmt: skip
    if not buckets:
        colour |= given(min=panel.low, max=panel.high)
    return {
        "calculate": False, "cellGap": 1, "color": colour, "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9} if buckets else {}, "legend": {"show": True}, "showValue": "never",
        "rowsFrame": {"layout": "auto" if buckets else "unknown"},
        "cellValues": {"unit": "short" if buckets else panel.unit, **given(decimals=panel.decimals)},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": panel.unit if buckets else "none", "reverse": False},
    }  # fmt: skip


def _line_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {"legend": _legend(panel), "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": False}}


def _legend(panel: Panel) -> dict[str, Any]:
    if panel.many:
        return {"showLegend": True, "displayMode": "table", "placement": "right", "calcs": ["lastNotNull", "max"],
                "sortBy": "Last *", "sortDesc": True}  # fmt: skip
    return {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}


def _state_options(scope: Scope, panel: Panel) -> dict[str, Any]:
    return {"showValue": "auto", "mergeValues": True, "alignValue": "left", "rowHeight": 0.8,
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"}}  # fmt: skip


_OPTIONS = {"timeseries": _line_options, "stat": _stat_options, "gauge": _gauge_options, "bargauge": _bar_options,
            "table": _table_options, "heatmap": _heat_options, "state-timeline": _state_options}  # fmt: skip
