"""The increase of cumulative counts between two readings of them."""

from __future__ import annotations

from dataclasses import replace

from k3observe.exporters.experts.loads import ExpertLoads


class Increases:
    """Turns cumulative counts into those of the interval since the reading before.

    A count that went down means that the engine was restarted: what it has counted since is the increase, as
    Prometheus takes it. The first reading, and one of another shape, only set the mark.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, str, str], ExpertLoads] = {}

    def of(self, now: ExpertLoads) -> ExpertLoads | None:
        """Return the counts since the reading before; None where there is none."""
        key = now.model, now.phase, now.scope
        before = self._before.get(key)
        if before is None and len(self._before) >= 64:
            self._before.clear()  # names come from what is read
        self._before[key] = now
        if before is None or not _same_shape(before, now):
            return None
        changes = tuple(
            tuple(new - old for new, old in zip(*rows, strict=True))
            for rows in zip(now.counts, before.counts, strict=True))
        if any(min(row, default=0) < 0 for row in changes):
            changes = now.counts
        return replace(now, counts=changes, seconds=max(0.0, now.time - before.time))


def _same_shape(one: ExpertLoads, other: ExpertLoads) -> bool:
    shapes = [
        (loads.layers, loads.columns, len(loads.counts), len(loads.counts[0]) if loads.counts else 0)
        for loads in (one, other)
    ]
    return shapes[0] == shapes[1]
