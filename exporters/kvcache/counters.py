"""The engine's counters made monotonic over its restarts, and hit ratios over sliding windows."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from k3observe.exporters.kvcache.engines import MAX_TIERS

WINDOWS = (("1m", 60.0), ("5m", 300.0))
SAME_START = 5.0
"""Seconds by which a process's start time may differ: it is computed from the clock's, which is set now and then."""


class Totals(NamedTuple):
    """Lookups and hits (by tier) since the exporter met the engine, in tokens or in blocks of unknown size."""

    queries: float
    hits: dict[str, float]

    @property
    def all_hits(self) -> float:
        """Hits of all tiers."""
        return sum(self.hits.values())


class Counters:
    """Follows one engine.

    An engine with a counter that falls, or whose process start time changed, has restarted: what all of its counters
    had before stays in the totals. By itself a counter may have overtaken its old value since, which ``increase()`` of
    Prometheus cannot know.
    """

    def __init__(self, interval: float) -> None:
        self._tolerance = 1.5 * interval
        self._offsets: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._start_time: float | None = None
        self._history: deque[tuple[float, float, float]] = deque()

    def add(
        self, now: float, queries: float, hits: tuple[tuple[str, float], ...], start_time: float | None = None
    ) -> Totals:
        """Take the engine's raw counters at ``now`` (monotonic seconds) and return the totals."""
        before = self._start_time
        restarted = before is not None and start_time is not None and abs(start_time - before) > SAME_START
        self._start_time = start_time if start_time is not None else self._start_time
        raw, known = {"": queries}, {"", *self._offsets, *self._last}
        for tier, value in hits:
            if tier in known or len(known) <= MAX_TIERS:  # an engine that renames them makes no series without end
                raw[tier] = value
                known.add(tier)
        if restarted or any(value < self._last.get(name, 0.0) for name, value in raw.items()):
            for name, value in self._last.items():
                self._offsets[name] = self._offsets.get(name, 0.0) + value
            self._last = {}
        self._last |= raw
        # A tier that hit before a restart and not since keeps its total.
        total = {name: self._offsets.get(name, 0.0) + self._last.get(name, 0.0)
                 for name in {*self._offsets, *self._last}}
        totals = Totals(total.pop(""), total)
        self._history.append((now, totals.queries, totals.all_hits))
        while self._history[0][0] < now - WINDOWS[-1][1] - self._tolerance:
            self._history.popleft()
        return totals

    def ratios(self) -> dict[str, float]:
        """Return hits over lookups by window, from the newest reading back.

        A window has none before it is covered, across a gap at its beginning, and without lookups.
        """
        if not self._history:
            return {}
        now, queries, hits = self._history[-1]
        ratios = {}
        for name, seconds in WINDOWS:
            time, old_queries, old_hits = min(self._history, key=lambda entry: abs(entry[0] - (now - seconds)))
            if abs(time - (now - seconds)) <= self._tolerance and queries > old_queries:
                ratios[name] = min(1.0, max(0.0, (hits - old_hits) / (queries - old_queries)))
        return ratios
