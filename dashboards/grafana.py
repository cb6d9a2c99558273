"""Dashboards as JSON of Grafana 11 to 13: grafanalib, and what it leaves out or gets wrong for them.

grafanalib writes the shapes of Grafana 8. Grafana migrates dashboards by their ``schemaVersion``; with that of 11 it
expects final shapes, which stand here and in ``panels``. Of grafanalib's keys those are taken that are still right.
Import this module only to render: grafanalib takes longer to import than all dashboards take to render.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grafanalib import core

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import BLUE, DATASOURCE_UID, EVERY_SERVICE, RED, Board, panel_id
from k3observe.dashboards.panels import SOURCE, given, panel_json
from k3observe.dashboards.scope import Scope, interval, widths
from k3observe.plan import Plan
from k3observe.render.alerts import dashboard_uid

SCHEMA_VERSION = 41
_LEGACY = ("__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style", "timepicker", "version", "id")


def dashboard(plan: Plan, board: Board, others: list[Board]) -> dict[str, Any]:
    """The dashboard of a stack, with links to the others."""
    scope = Scope(plan, board)
    found = core.Dashboard(
        title=f"{plan.config.stack} / {scope.text(board.title)}", description=scope.text(board.about),
        uid=dashboard_uid(plan.config, board.name), tags=["k3observe", plan.config.stack], refresh="30s",
        time=core.Time("now-1h", "now"), timezone="browser", schemaVersion=SCHEMA_VERSION,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR, editable=True,
        links=[_link(plan, scope, other) for other in others if other is not board],
        annotations=core.Annotations(list(_annotations(plan, scope))),
        templating=core.Templating(list(_variables(plan, scope))), panels=list(_panels(scope)),
    ).to_json_data()  # fmt: skip
    for key in ("annotations", "templating", "time"):
        found[key] = found[key].to_json_data()
    return {key: value for key, value in found.items() if key not in _LEGACY}


def _link(plan: Plan, scope: Scope, other: Board) -> dict[str, Any]:
    """A link that keeps time, data source and services, but no instance: those of another page are others."""
    kept = "".join(f"&${{{name}:queryparam}}" for name in ("datasource", *plan.config.identity_labels, "service"))
    found: dict[str, Any] = core.DashboardLink(
        type="link", title=scope.text(other.title), uri=f"/d/{dashboard_uid(plan.config, other.name)}?{kept[1:]}",
        icon="dashboard", tooltip=scope.text(other.about),
    ).to_json_data()  # fmt: skip
    return found


def _annotations(plan: Plan, scope: Scope) -> Iterator[dict[str, Any]]:
    def annotation(name: Text, expr: str, colour: str, title: str, text: str) -> dict[str, Any]:
        return {
            "name": scope.text(name), "datasource": SOURCE, "enable": True, "hide": False, "iconColor": colour,
            "target": {"refId": "Anno", "expr": scope.expr(expr), "interval": str(interval(plan.config)),
                       "range": True},
            "titleFormat": title, "textFormat": text,
        }  # fmt: skip

    yield annotation(Text("Alerts", "告警"), 'ALERTS{S,alertstate="firing",severity=~"critical|warning"}', RED,
                     "{{alertname}}", "{{service}} {{instance}}")  # fmt: skip
    if scope.has(("expert_rebalances",)):
        yield annotation(Text("Expert rebalances", "专家重排"),
                         "sum by (service) (increase(k3:expert_rebalances:total{S}[$__rate_interval])) > 0",
                         BLUE, scope.text(Text("Experts rearranged", "专家重排")), "{{service}}")  # fmt: skip


def _variables(plan: Plan, scope: Scope) -> Iterator[dict[str, Any]]:
    stack = f'stack="{plan.config.stack}"'
    yield {
        "name": "datasource", "type": "datasource", "query": "prometheus", "refresh": 1, "multi": False,
        "includeAll": False, "hide": 0, "options": [], "label": scope.text(Text("Data source", "数据源")),
        "current": {"text": "Prometheus (k3observe)", "value": DATASOURCE_UID},
    }  # fmt: skip
    chosen = stack
    for label in plan.config.identity_labels:
        yield _variable(label, label, f"label_values(k3:engine_up:bool{{{chosen}}}, {label})", ".*")
        chosen += f',{label}=~"${label}"'
    # all services are any where the page shows any, else those that have what it is about
    every = scope.board.services == EVERY_SERVICE and not scope.board.single
    yield _variable("service", scope.text(Text("Service", "服务")),
                    f"label_values({scope.board.services}{{{chosen}}}, service)",
                    ".*" if scope.board.unowned else ".+" if every else "", single=scope.board.single)  # fmt: skip
    chosen += ',service=~"$service"'
    if scope.board.instances:
        yield _variable("instance", scope.text(Text("Instance", "实例")),
                        f"label_values({scope.board.instances}{{{chosen}}}, instance)", ".+")  # fmt: skip
        chosen += ',instance=~"$instance"'
    if scope.engine_series:
        yield _variable("engine", scope.text(Text("Engine", "引擎")),
                        f"label_values({scope.engine_series}{{{chosen}}}, engine)", ".+")  # fmt: skip


def _variable(name: str, label: str, query: str, everything: str, *, single: bool = False) -> dict[str, Any]:
    """A query variable; ``everything`` is the regular expression of All, else Grafana joins what is listed."""
    several = not single
    found = core.Template(
        name=name, label=label, query={"qryType": 1, "query": query,
                                       "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        dataSource=SOURCE, multi=several, includeAll=several, allValue=everything or None,
        refresh=core.REFRESH_ON_TIME_RANGE_CHANGE,
        sort=core.SORT_NUMERIC_ASC if name == "engine" else core.SORT_ALPHA_ASC,
    ).to_json_data()  # fmt: skip
    for key in ("auto", "auto_min", "auto_count", "useTags", "tagsQuery", "tagValuesQuery", "regex"):
        del found[key]
    current = {"text": ["All"], "value": ["$__all"]} if several else None
    return given(**{**found, "current": current, "definition": query})


def _panels(scope: Scope) -> Iterator[dict[str, Any]]:
    """Panels with their places; the panels of a collapsed row are inside it."""
    y, section = 0, None
    for row, panels in scope.rows():
        if row.title is not None:
            if section is not None:
                yield section
                y = section["gridPos"]["y"] + 1
            section = _row(scope, row.title, y, row.collapsed)
            y += 1
            if not row.collapsed:
                yield section
                section = None
        x = 0
        for panel, width in zip(panels, widths(panels), strict=True):
            made = panel_json(scope, panel, {"x": x, "y": y, "w": width, "h": scope.height(row)})
            x += width
            if section is None:
                yield made
            else:
                section["panels"].append(made)
        y += scope.height(row)
    if section is not None:
        yield section


def _row(scope: Scope, title: Text, y: int, collapsed: bool) -> dict[str, Any]:
    made = core.RowPanel(title=scope.text(title), collapsed=collapsed, id=panel_id(f"{scope.board.name}-{title.en}"),
                         gridPos={"h": 1, "w": 24, "x": 0, "y": y}).to_json_data()  # fmt: skip
    return {key: made[key] for key in ("id", "type", "title", "collapsed", "gridPos", "panels")}
