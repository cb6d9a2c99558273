"""Checks of the PromQL in dashboards: those of rules that hold for panels too, and what only panels get wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import promql_parser as promql

from k3observe.lint import histograms, ratios, selectors
from k3observe.lint.finding import Check, Fault
from k3observe.lint.labels import labels
from k3observe.lint.panels import Dashboard, Query
from k3observe.lint.promql import RATES, bare, children, each, is_counter, names, nodes, operator
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_WINDOW = re.compile(r"\b(?:rate|irate|deriv)\s*\([^\[\]]*\[(\d[\d.smhdwy]*)\]")
_OF_COUNTERS = (*RATES, "changes", "resets", "count_over_time", "absent", "absent_over_time", "timestamp",
                "present_over_time", "last_over_time")  # fmt: skip
_PARTS = re.compile(r"_(?:bucket|sum|count):rate\w+$")


def _each(find: Callable[[Query, Any, Surroundings], Iterator[Fault]], dashboard: Dashboard,
          around: Surroundings) -> Iterator[Fault]:  # fmt: skip
    """Run a check over the queries that can be parsed."""
    for query in dashboard.queries():
        try:
            expr = query.parsed()
        except ValueError:
            continue
        for fault in find(query, expr, around):
            yield Fault(f"{query.where}: {fault.what}", fault.value, fault.fix)


def syntax(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """Grafana shows an error instead of a graph."""
    for query in dashboard.queries():
        try:
            query.parsed()
        except ValueError as error:
            yield Fault(f"{query.where}: the expression is no PromQL: {error}", query.text)


def rate_interval(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """Zoomed out, a fixed window skips most samples; zoomed in, it may hold fewer than two."""
    found = _WINDOW.search(query.text)
    if found and query.kind and not query.target.get("instant"):
        yield Fault("the window of the rate is fixed", found[1], "write [$__rate_interval], which follows the zoom")


def heatmap_format(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """Buckets are cumulative: without the format heatmap each cell shows all faster requests too."""
    if query.kind != "heatmap" or query.target.get("format") == "heatmap":
        return
    if any("_bucket" in name for selector in each(expr, promql.VectorSelector) for name in names(selector)):
        yield Fault("cumulative buckets are drawn as they are", query.target.get("format"), 'set "format": "heatmap"')


def counter_without_rate(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """A counter only ever grows; its height says how long the process has run."""
    for node, above in nodes(expr):
        if not isinstance(node, promql.VectorSelector):
            continue
        name = next(filter(_counts, names(node)), None)
        fine = any(operator(outer) in (*_OF_COUNTERS, "count", "group") or _birth(outer) for outer in above)
        if name is not None and not fine:
            yield Fault(f"{name} is a counter and only ever grows", query.text,
                        f"draw its rate: rate({name}[$__rate_interval])")


def _birth(expr: Any) -> bool:
    """``x unless x offset 5m``: series that were not there before, which have no increase yet."""
    if operator(expr) != "unless":
        return False
    left, right = ({name for s in each(side, promql.VectorSelector) for name in names(s)} for side in children(expr))
    return left == right


def _counts(name: str) -> bool:
    return name.endswith(":total") or (is_counter(name) and not name.startswith("prometheus_rule_group"))


def legend_label(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """A label that is gone leaves a hole in the legend."""
    legend = query.target.get("legendFormat")
    carried = labels(expr, around.records)
    for name in _LABEL.findall(legend) if isinstance(legend, str) else ():
        cells = query.kind == "heatmap" and name == "le"
        if name not in carried and not cells and name != "__name__":
            yield Fault(f"the legend names {name}, which the expression does not carry", query.text,
                        f"aggregate by ({name}, …), or leave it out of the legend")  # fmt: skip


def heatmap_without_le(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """The rows of a heatmap of buckets are the values of ``le``."""
    if query.kind != "heatmap" or "le" in labels(expr, around.records):
        return
    if any("_bucket" in name for selector in each(expr, promql.VectorSelector) for name in names(selector)):
        yield Fault("the label le is aggregated away: the heatmap has one row", query.text, "aggregate by (le)")


def unknown_metric(query: Query, expr: Any, around: Surroundings) -> Iterator[Fault]:
    """A panel on a name that nothing has is empty, and says nothing of why."""
    for selector in each(expr, promql.VectorSelector):
        for name in names(selector):
            ours = name.startswith(("k3:", "k3_")) and name not in around.records
            if ours and around.series and not {name, _PARTS.sub("", name)} & around.series:
                yield Fault(f"nothing has the series {name}", query.text, "see `k3observe explain` for the signals")


def _as_rule(find: Callable[[Rule, Surroundings], Iterator[Fault]], query: Query, expr: Any,
             around: Surroundings) -> Iterator[Fault]:  # fmt: skip
    yield from find(Rule("", 0, "panel", query.where, query.text, bare(expr), {}, {}, {}, {}), around)


_SHARED = (
    Check("promql/ratio-unguarded", ratios.unguarded),
    Check("promql/average-of-ratios", ratios.average_of_ratios),
    Check("promql/quantile-without-le", histograms.quantile_without_le),
    Check("promql/average-of-quantiles", histograms.average_of_quantiles),
    Check("promql/le-spelling", histograms.le_spelling),
    Check("promql/unknown-metric", selectors.unknown_metric),
)

CHECKS: tuple[Check[Dashboard], ...] = (
    Check("promql/syntax", syntax),
    *(Check(check.id, partial(_each, partial(_as_rule, check.find))) for check in _SHARED),
    Check("dashboard/rate-interval", partial(_each, rate_interval)),
    Check("dashboard/heatmap-format", partial(_each, heatmap_format)),
    Check("dashboard/heatmap-without-le", partial(_each, heatmap_without_le)),
    Check("dashboard/counter-without-rate", partial(_each, counter_without_rate)),
    Check("dashboard/legend-label", partial(_each, legend_label)),
    Check("dashboard/unknown-metric", partial(_each, unknown_metric)),
)
