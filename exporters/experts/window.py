"""A sliding window over the intervals and readings of a source."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import add
from typing import Any

from k3observe.exporters.experts.loads import BalanceReading, ExpertLoads, Formula, Phase, Scope
from k3observe.exporters.experts.merge import column_ids, layer_ids, merge

BUCKETS = 20
"""The window moves in steps of a twentieth: what is kept does not grow with the number of intervals."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """Readings of one model, phase and formula over the window, averaged by their weights.

    ``value`` is None when no reading had enough tokens for a balance to mean something.
    """

    model: str
    formula: Formula
    phase: Phase
    value: float | None
    worst: float | None
    tokens: float | None
    weight: float
    ranks: int | None


@dataclass(slots=True)
class _Counts:
    """One layout of rows and columns: counts by bucket, flattened, and the newest interval for all else."""

    newest: ExpertLoads
    buckets: dict[int, array[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Sums:
    """Weighted sums of one bucket of readings; ``tokens`` and ``worst_weight`` are 0 where never told."""

    weight: float = 0.0
    value: float = 0.0
    worst_weight: float = 0.0
    worst: float = 0.0
    tokens: float = 0.0


@dataclass(slots=True)
class _Readings:
    ranks: int | None = None
    buckets: dict[int, _Sums] = field(default_factory=dict)


class Window:
    """The last ``seconds`` of intervals and readings (thread-safe).

    Readings whose mean load per rank and layer is known and below ``min_load`` add their tokens, but not their
    balance: with few tokens even a perfect router is uneven. Of more than ``max_models`` models the later ones are
    refused, as the names come from what is read.
    """

    def __init__(self, seconds: float, min_load: float, clock: Callable[[], float], max_models: int = 4) -> None:
        self.seconds = seconds
        self._min_load, self._clock, self._max_models = min_load, clock, max_models
        self._width = seconds / BUCKETS
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Phase, Scope], dict[tuple[int, ...], _Counts]] = {}
        self._readings: dict[tuple[str, Phase, Formula], _Readings] = {}

    def add(self, event: ExpertLoads | BalanceReading) -> bool:
        """Add an interval or reading; return False when its model is one too many or its time has passed."""
        now = self._clock()
        bucket = int(min(event.time, now) / self._width)
        with self._lock:
            self._expire(now)
            if bucket <= int(now / self._width) - BUCKETS or not self._known(event.model):
                return False
            if isinstance(event, BalanceReading):
                self._add_reading(event, bucket)
            elif event.counts:
                self._add_counts(event, bucket)
        return True

    def loads(self) -> list[ExpertLoads]:
        """Return the sum of the window for each model, phase and scope."""
        now = self._clock()
        with self._lock:
            self._expire(now)
            sums = [[self._sum(counts) for counts in layouts.values()] for layouts in self._counts.values()]
        return [merge(parts) for parts in sums]

    def readings(self) -> list[Averaged]:
        """Return the weighted mean of the window for each model, phase and formula."""
        now = self._clock()
        with self._lock:
            self._expire(now)
            return [
                _averaged(model, phase, formula, entry.ranks, entry.buckets.values())
                for (model, phase, formula), entry in self._readings.items()
            ]

    def _known(self, model: str) -> bool:
        models = {key[0] for key in (*self._counts, *self._readings)}
        return model in models or len(models) < self._max_models

    def _add_counts(self, loads: ExpertLoads, bucket: int) -> None:
        layouts = self._counts.setdefault((loads.model, loads.phase, loads.scope), {})
        layers, columns = layer_ids(loads), column_ids(loads)
        for other in list(layouts):
            overlaps = other != layers and not set(other).isdisjoint(layers)
            if overlaps or column_ids(layouts[other].newest) != columns:
                # The group was resized: its old counts say nothing about the new ranks.
                del layouts[other]
        counts = layouts.setdefault(layers, _Counts(loads))
        counts.newest = loads
        flat = array("q", [load for row in loads.counts for load in row])
        before = counts.buckets.get(bucket)
        counts.buckets[bucket] = flat if before is None else array("q", map(add, before, flat))

    def _add_reading(self, reading: BalanceReading, bucket: int) -> None:
        entry = self._readings.setdefault((reading.model, reading.phase, reading.formula), _Readings())
        entry.ranks = reading.ranks
        sums = entry.buckets.setdefault(bucket, _Sums())
        sums.tokens += reading.tokens or 0.0
        if reading.rank_load is not None and reading.rank_load < self._min_load:
            return
        sums.weight += reading.weight
        sums.value += reading.weight * reading.value
        if reading.worst is not None:
            sums.worst_weight += reading.weight
            sums.worst += reading.weight * reading.worst

    def _sum(self, counts: _Counts) -> ExpertLoads:
        newest = counts.newest
        flat = list(map(sum, zip(*counts.buckets.values(), strict=True)))
        width = len(newest.counts[0])
        rows = tuple(tuple(flat[start : start + width]) for start in range(0, len(flat), width)) if width else ()
        return ExpertLoads(
            newest.model, newest.scope, rows, self.seconds, newest.time, newest.phase, newest.layers, newest.columns,
            newest.ranks_seen, newest.ranks_expected)

    def _expire(self, now: float) -> None:
        current = int(now / self._width)
        last = current - BUCKETS
        for layouts in self._counts.values():
            _drop(layouts, last, current)
        for key in [key for key, layouts in self._counts.items() if not layouts]:
            del self._counts[key]
        _drop(self._readings, last, current)


def _drop(entries: dict[Any, _Counts] | dict[Any, _Readings], last: int, current: int) -> None:
    """Drop buckets up to ``last``, and entries left without one.

    Buckets after ``current`` are left from before the clock was put back: they would stay until it is there again.
    The next one is kept, since a clock that is slewed goes back a little.
    """
    for key in list(entries):
        buckets = entries[key].buckets
        for bucket in [bucket for bucket in buckets if bucket <= last or bucket > current + 1]:
            del buckets[bucket]
        if not buckets:
            del entries[key]


def _averaged(
    model: str, phase: Phase, formula: Formula, ranks: int | None, buckets: Iterable[_Sums]
) -> Averaged:
    sums = list(buckets)
    weight, worst_weight = sum(s.weight for s in sums), sum(s.worst_weight for s in sums)
    return Averaged(
        model=model, formula=formula, phase=phase,
        value=sum(s.value for s in sums) / weight if weight else None,
        worst=sum(s.worst for s in sums) / worst_weight if worst_weight else None,
        tokens=sum(s.tokens for s in sums) or None,
        weight=weight, ranks=ranks,
    )
