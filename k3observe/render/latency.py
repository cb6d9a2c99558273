"""Requests within a latency, from the recorded buckets of a pooled histogram."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from k3observe.plan import Plan
from k3observe.render.template import number
from k3observe.thresholds import objective


class Latency(NamedTuple):
    """A latency objective of a service: its seconds, and the recorded rates of all and of too slow observations."""

    seconds: float
    events: str
    slow: str


def latency(plan: Plan, service: str, signal: str, sel: str, by: str) -> Latency | None:
    """The objective of a service for a latency, or None where its source or the bounds of its buckets are not known."""
    entry = plan.entry(service, signal)
    alert = next(item for item in plan.pack.alerts.values() if item.derive == "latency" and item.signals[0] == signal)
    if entry is None or not entry.buckets or plan.services[service].role not in alert.suits.roles:
        return None
    found, _ = objective(signal, plan.facts[service], entry.buckets, alert.threshold or 0.0)
    series = plan.catalogue.signals[signal].series
    events = f"sum by ({by}) ({series}_count:rate5m{{{sel}}})"
    return Latency(found.seconds, events, f"{events} - ({within(series, sel, by, entry.buckets, found.seconds)})")


def tellable(plan: Plan, service: str, signal: str) -> bool:
    """Whether requests within the objective can be told from others at all: not below the first bucket."""
    found, entry = latency(plan, service, signal, "", ""), plan.entry(service, signal)
    return found is not None and entry is not None and found.seconds >= entry.buckets[0]


def within(series: str, sel: str, by: str, bounds: tuple[float, ...], seconds: float) -> str:
    """Observations a second of at most ``seconds``; between two bounds on a straight line, as quantiles are."""
    place = min(bisect_left(bounds, seconds), len(bounds) - 1)  # beyond the last one nothing can be told apart
    if bounds[place] <= seconds:
        return bucket(series, sel, by, bounds[place])
    above = bounds[place]
    below = bounds[place - 1] if place else 0.0
    weight = (seconds - below) / (above - below)
    high = f"{number(weight)} * {bucket(series, sel, by, above)}"
    return high if not place else f"{number(1 - weight)} * {bucket(series, sel, by, below)} + {high}"


def bucket(series: str, sel: str, by: str, bound: float) -> str:
    """The cumulative rate up to a bound, which clients spell with or without ``.0``."""
    matcher = f'le=~"{int(bound)}([.]0)?"' if bound == int(bound) else f'le="{bound!r}"'
    return f"sum by ({by}) ({series}_bucket:rate5m{{{sel}, {matcher}}})"
