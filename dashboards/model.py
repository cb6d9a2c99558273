"""What a dashboard is made of.

Expressions are PromQL with three selectors: ``{S}`` stands for this stack and the chosen services, ``{I}`` for the
chosen instances too, ``{E}`` for the chosen engines too (``{S,scope="rank"}`` adds to one). ``by (service`` and
``on (service`` get the identity labels of the configuration, ``{limit ALERT 1.5}`` is the threshold of an alert (1.5
where it is not armed), ``{20 evaluations}`` the time that so many evaluations of the rules (or
scrapes, where those are rarer) take, and ``STACK`` the name
of the stack. In legends ``{{sidecar}}`` is the instance of a sidecar, and nothing where each service has only one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from k3observe.catalogue.model import Text
from k3observe.plan import Plan

Kind = Literal["timeseries", "stat", "gauge", "bargauge", "table", "heatmap", "state-timeline", "text"]
Good = Literal["low", "high"]

# Okabe and Ito's colours, which people of any colour vision tell apart
GREEN, ORANGE, RED, BLUE, PURPLE, YELLOW = "#009E73", "#E69F00", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442"

DATASOURCE_UID = "k3observe-prometheus"
"""The data source that is provisioned beside the dashboards; any other can be chosen in its place."""

EVERY_SERVICE = "k3:engine_up:bool"
"""The series that tells which services there are."""

IDLE = Text("No traffic", "暂无流量")


@dataclass(frozen=True, slots=True)
class Limit:
    """A number to judge by: the threshold (or parameter) of an alert as configured, a fact, or ``value`` itself."""

    alert: str = ""
    param: str = ""
    fact: str = ""
    """A launch flag, where the configuration gives it."""
    value: float | None = None
    colour: str = ORANGE


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its series are called; in a table, ``column`` is the heading of its values."""

    expr: str
    legend: str | Text = ""
    needs: tuple[str, ...] = ()
    """Signals without which the query is left out, though the panel stays."""
    column: Text | None = None
    unit: str = ""
    limits: tuple[Limit, ...] = ()
    good: Good = "low"
    decimals: int | None = None
    states: Mapping[int, tuple[Text, str]] = field(default_factory=dict)
    """What the values of the column mean, and their colours."""
    order: Literal["", "ascending", "descending"] = ""
    """A table is sorted by this column."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. It is left out where no service of the stack has all of ``needs``.

    ``idle`` is shown when there is no data although the signals exist. ``alerts`` are those whose notification opens
    this panel. ``width`` is its share of the row.
    """

    key: str
    kind: Kind
    title: Text
    about: Text
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    needs: tuple[str, ...] = ()
    idle: Text = IDLE
    limits: tuple[Limit, ...] = ()
    good: Good = "low"
    alerts: tuple[str, ...] = ()
    width: int = 1
    low: float | None = None
    high: float | None = None
    decimals: int | None = None
    stacked: bool = False
    named: bool = False
    """A tile also shows what its value is that of."""
    many: bool = False
    """Many series: a table beside them instead of a line of names below."""
    colours: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[int, tuple[Text, str]] = field(default_factory=dict)
    """What the values of a state timeline (or a tile) mean, and their colours."""
    columns: Mapping[str, Text] = field(default_factory=dict)
    """Headings of a table's label columns, in order; other labels are hidden."""
    content: Callable[[Plan], str] | None = None
    """The markdown of a text panel."""
    link: str = ""
    """The dashboard that the first column of a table opens."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side. Those that stay when some are left out share the whole width."""

    panels: tuple[Panel, ...]
    height: int = 8
    lines: bool = False
    """Its height also grows with the services of the stack, up to ten."""
    title: Text | None = None
    """Starts a section; the rows up to the next title belong to it."""
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    ``services`` and ``instances`` are the series whose services and instances may be chosen. ``single`` means one
    service at a time: buckets of engines of two kinds have other bounds, and cannot be added up.
    """

    name: str
    title: Text
    about: Text
    rows: tuple[Row, ...]
    services: str = EVERY_SERVICE
    single: bool = False
    subject: str = ""
    """The signal without which there is nothing to show."""
    unowned: bool = False
    """Devices of no service are shown too."""
    instances: str = ""
    engines: tuple[str, ...] = ()
    """Signals that tell which engines there are: the first that some service has."""


def panel_id(key: str) -> int:
    """The id of a panel: the same in every bundle, however many panels stand before it."""
    return zlib.crc32(key.encode()) % 1_000_000 + 1


def tile(key: str, title: Text, about: Text, expr: str, legend: str = "", **more: object) -> Panel:
    """A stat panel of one query."""
    return Panel(key, "stat", title, about, (Query(expr, legend),), **more)  # type: ignore[arg-type]


def graph(key: str, title: Text, about: Text, *queries: Query, **more: object) -> Panel:
    """A time series panel."""
    return Panel(key, "timeseries", title, about, queries, **more)  # type: ignore[arg-type]


def quantiles(key: str, title: Text, about: Text, series: str, needs: str, **more: object) -> Panel:
    """Median, 90th and 99th percentile of a histogram, pooled over the engines of a service."""
    pooled = f"sum by (le) ({series}_bucket:rate5m{{S}})"
    return Panel(
        key, "timeseries", title, about,
        tuple(Query(f"histogram_quantile({q}, {pooled})", name) for q, name in ((0.99, "p99"), (0.9, "p90"), (0.5,
                                                                                                              "p50"))),
        unit="s", needs=(needs,), low=0, colours={"p99": RED, "p90": ORANGE, "p50": BLUE},
        **more)  # type: ignore[arg-type]  # fmt: skip


def distribution(key: str, title: Text, about: Text, series: str, needs: str, unit: str = "s") -> Panel:
    """The heatmap of a histogram."""
    return Panel(key, "heatmap", title, about, (Query(f"sum by (le) ({series}_bucket:rate5m{{S}})", "{{le}}"),),
                 unit=unit, needs=(needs,))  # fmt: skip
