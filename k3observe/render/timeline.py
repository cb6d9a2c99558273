"""Values over time, and promtool's notation of them."""

from __future__ import annotations

from functools import lru_cache

from k3observe.catalogue.expression import ExampleSeries
from k3observe.render.template import number

Steps = tuple[tuple[float, int], ...]
"""A value and for how many scrapes it holds; NaN is absent."""


@lru_cache(1024)  # the buckets of a histogram grow alike
def plus(whole: Steps, part: Steps, sign: int = 1) -> Steps:
    """Two timelines added, or the second taken off; what is absent in the second is 0."""
    rest = [*part, (0.0, sum(count for _, count in whole))]
    found: list[tuple[float, int]] = []
    for value, count in whole:
        while count:
            more, lasts = rest.pop(0)
            both = min(count, lasts)
            if lasts > both:
                rest.insert(0, (more, lasts - both))
            count -= both
            total = value + sign * more if more == more else value
            if found and (found[-1][0] == total or (found[-1][0] != found[-1][0] and total != total)):
                both += found.pop()[1]
            found.append((total, both))
    return tuple(found)


def values(row: ExampleSeries, steps: Steps, step: float, grows: bool, start: float) -> str:
    """Promtool's notation: a gauge stands still, a counter grows by its rate, ``absent`` leaves samples out."""
    parts: list[str] = []
    total, now = start, 0.0
    for value, count in steps:
        if value != value or value < row.from_count:
            parts.append(gone(count))
            now += count * step
            continue
        raw = row.factor * value + row.offset
        if row.clock:
            parts.append(run(now + raw, step, count))
        elif grows:
            growth = raw * step
            parts.append(run(total, growth, count))
            total += growth * count
        else:
            parts.append(run(raw, 0.0, count))
        now += count * step
    return " ".join(parts)


def gone(count: int) -> str:
    """A series that a scrape no longer has ends with a marker, as Prometheus writes it."""
    return f"stale _x{count - 1}" if count > 1 else "stale"


def run(start: float, growth: float, count: int) -> str:
    """So many samples, each ``growth`` above the one before."""
    if growth == 0:
        return f"{number(start)}x{count - 1}" if count > 1 else number(start)
    return f"{number(start)}{'+' if growth > 0 else '-'}{number(abs(growth))}x{count - 1}"


@lru_cache(1024)
def counter(growth: Steps) -> str:
    """A counter that grows by these values a scrape."""
    parts, total = [], 0.0
    for each, count in growth:
        if each != each:
            parts.append(gone(count))
            continue
        parts.append(run(total, each, count))
        total += each * count
    return " ".join(parts)
