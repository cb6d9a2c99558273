"""Checks of how a Grafana dashboard is put together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from k3observe.lint.finding import Check, Fault
from k3observe.lint.panels import Dashboard, Panel
from k3observe.lint.surroundings import Surroundings

COLUMNS = 24
_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?:[:.][^}]*)?\}|\[\[(\w+)(?::\w+)?\]\]")
_BUILT_IN = re.compile(r"__\w+|timeFilter|interval|\d+")


def variable_without_metric(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """``label_values(model_name)`` lists what every exporter calls so, engines or not."""
    for name, query in _variable_queries(dashboard):
        if re.fullmatch(r"\s*label_values\(\s*\w+\s*\)\s*", query):
            yield Fault(f"variable {name} lists a label of every exporter", query,
                        'name a series and its job: label_values(vllm:num_requests_running{job=~"$job"}, model_name)')


def unknown_variable(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Grafana sends the name of a variable that it does not know to Prometheus as it stands."""
    known = {str(variable.get("name")) for variable in dashboard.variables()}
    repeated = {str(panel.data.get("repeat")) for panel in dashboard.panels()}
    texts = [(f"variable {name}", query) for name, query in _variable_queries(dashboard)]
    texts += [(query.where, query.text) for query in dashboard.queries()]
    for where, text in texts:
        for match in _VARIABLE.finditer(text):
            name = match[1] or match[2] or match[3]
            if name not in known | repeated and not _BUILT_IN.fullmatch(name):
                yield Fault(f"{where} uses the variable ${name}, which the dashboard does not have", text,
                            f"use one of {', '.join(sorted(known)) or 'none'}, or add it")  # fmt: skip


def uid(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Grafana refuses other uids; links to a dashboard without one break when it is imported again."""
    found = dashboard.data.get("uid")
    if not isinstance(found, str) or not _UID.fullmatch(found):
        yield Fault("the uid is not 1 to 40 letters, digits, - and _", found, "set a fixed uid, so that links hold")


def panel_id(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Links to a panel, and its alerts, go by its id."""
    seen: dict[Any, str] = {}
    for panel in dashboard.panels():
        found = panel.data.get("id")
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            yield Fault(f"{panel.name} has no id of its own", found, "give it a whole number from 1 on")
        elif found in seen:
            yield Fault(f"{panel.name} has the id of {seen[found]}", found, "give each panel an id of its own")
        else:
            seen[found] = panel.name


def ref_id(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Results are told apart by refId: of two that share one, one is not drawn."""
    for panel in dashboard.panels():
        seen: set[str] = set()
        for target in panel.targets():
            found = target.get("refId")
            if not isinstance(found, str) or not found:
                yield Fault(f"a query of {panel.name} has no refId", target.get("expr"), 'name it, such as "A"')
            elif found in seen:
                yield Fault(f"two queries of {panel.name} have one refId", found, "give each a letter of its own")
            else:
                seen.add(found)


def grid(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Grafana moves panels that overlap, and cuts off those that are too wide."""
    levels: dict[int, list[tuple[Panel, tuple[int, int, int, int]]]] = {}
    for panel in dashboard.panels():
        place = _place(panel.place)
        if place is None:
            yield Fault(f"{panel.name} has no place in the grid", panel.place, "give gridPos whole numbers x, y, w, h")
            continue
        x, _, w, h = place
        if w < 1 or h < 1 or x < 0 or x + w > COLUMNS:
            yield Fault(f"{panel.name} does not fit the {COLUMNS} columns", panel.place, "x + w is at most 24")
        others = levels.setdefault(id(panel.inside), [])
        other = next((other for other, taken in others if _overlap(place, taken)), None)
        if other is not None:
            yield Fault(f"{panel.name} lies over {other.name}", panel.place, "move it")
        others.append((panel, place))


def datasource(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """A fixed data source is that of one Grafana: elsewhere the panel is empty."""
    for panel in dashboard.panels():
        if panel.kind in ("row", "text"):
            continue
        for holder in (panel.data, *panel.targets()):
            if "datasource" in holder and not _templated(holder["datasource"]):
                yield Fault(f"{panel.name} is bound to one data source", holder["datasource"],
                            'use a variable of type datasource: {"uid": "${datasource}"}')  # fmt: skip
                break


def _variable_queries(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    """Name and query of each query variable."""
    for variable in dashboard.variables():
        query = variable.get("query")
        query = query.get("query") if isinstance(query, dict) else query
        if isinstance(query, str) and variable.get("type") == "query":
            yield str(variable.get("name")), query


def _place(found: Mapping[str, Any] | None) -> tuple[int, int, int, int] | None:
    values = [found.get(name) for name in ("x", "y", "w", "h")] if found else []
    if not values or any(isinstance(value, bool) or not isinstance(value, int) for value in values):
        return None
    x, y, w, h = values
    return (x, y, w, h)  # type: ignore[return-value]


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def _templated(found: object) -> bool:
    """Whether a data source is a variable, Grafana's own, or left to the default."""
    name = found.get("uid") if isinstance(found, dict) else found
    return name is None or (isinstance(name, str) and ("$" in name or name.startswith("-- ") or name == "grafana"))


CHECKS = (
    Check("dashboard/variable-without-metric", variable_without_metric),
    Check("dashboard/unknown-variable", unknown_variable),
    Check("dashboard/uid", uid),
    Check("dashboard/panel-id", panel_id),
    Check("dashboard/ref-id", ref_id),
    Check("dashboard/grid", grid),
    Check("dashboard/datasource", datasource),
)
