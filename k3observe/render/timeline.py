"""Values over time, and promtool's notation of them."""

from __future__ import annotations

from k3observe.catalogue.expression import ExampleSeries
from k3observe.render.template import number

Steps = list[tuple[float, int]]
"""A value and for how many scrapes it holds; NaN is absent."""


def plus(whole: Steps, part: Steps, sign: int = 1) -> Steps:
    """Two timelines added, or the second taken off; what is absent in the second is 0."""
    other = [value for value, count in part for _ in range(count)]
    found: Steps = []
    position = 0
    for value, count in whole:
        for _ in range(count):
            more = other[position] if position < len(other) else 0.0
            total = value + sign * more if more == more else value
            position += 1
            if found and (found[-1][0] == total or (found[-1][0] != found[-1][0] and total != total)):
                found[-1] = (total, found[-1][1] + 1)
            else:
                found.append((total, 1))
    return found


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
