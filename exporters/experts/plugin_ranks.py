"""Adding up the ranks of an engine: which pass all of them have published, and the loads since the one before.

Ranks run in lock-step, so that the counter of the engine's load balancer names a pass on all of them; wall clocks and
sequence numbers do not. A dead rank is not waited for, a late one for a while. As every rank counts what it sends to
all ranks, one that is missing takes a share of each column with it and shifts a balance but little.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import add, sub

from k3observe.exporters.experts.balance import placed
from k3observe.exporters.experts.loads import Event, ExpertLoads, Rebalance
from k3observe.exporters.experts.plugin_files import Place
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Publication

KEPT = 3
"""Publications of a rank that are kept until all ranks have the same one."""
LATE_SECONDS = 5.0
SETTLE_SECONDS = 1.0
"""How long a pass waits for ranks that have no file yet: they are on another node, or about to write their first."""
FORGET_SECONDS = 600.0
MAX_GROUPS = 64
STAGE = 1000
"""Distance of the layer numbers of two pipeline stages where the model's own numbers are not known."""

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Counts of one model added over ranks: in the interval, and since the processes started."""

    first: ModelCounts
    counts: array[int]
    totals: array[int]
    recorded: int
    total_recorded: int
    settled: bool


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The pass that was handed over last, by whom it was published, and the totals up to it."""

    time: float
    ranks: frozenset[tuple[int, str]]
    sums: dict[str, _Sum]


@dataclass(slots=True)
class _Rank:
    """What one process has published and was not handed over yet."""

    run: str
    sequence: int = 0
    size: int = 0
    kept: deque[Publication] = field(default_factory=lambda: deque(maxlen=KEPT))


@dataclass(slots=True)
class _Group:
    """The ranks of one expert-parallel group."""

    ranks: dict[int, _Rank] = field(default_factory=dict)
    newest: float = 0.0
    size: int = 0
    baseline: _Baseline | None = None
    leader: str = ""
    rearrangements: int = 0

    def add(self, publication: Publication) -> None:
        rank = self.ranks.get(publication.ep_rank)
        if rank is None or rank.run != publication.run:
            rank = self.ranks[publication.ep_rank] = _Rank(publication.run)
        if publication.sequence <= rank.sequence:
            return  # only touched
        rank.sequence, rank.size = publication.sequence, publication.ep_size
        if self.baseline is None or publication.time > self.baseline.time:
            rank.kept.append(publication)
        if publication.time >= self.newest:
            self.newest, self.size = publication.time, publication.ep_size

    def complete(self, alive: AbstractSet[int], now: float) -> list[Publication]:
        """Return the publications of the newest pass that all living ranks have; after a while, of most of them."""
        by_key: dict[Key, list[Publication]] = {}
        waiting = 0
        for number, rank in sorted(self.ranks.items()):
            if rank.size != self.size:
                continue  # the group was resized, and these counts are of other experts
            waiting += number in alive
            for publication in rank.kept:
                by_key.setdefault((publication.cycle, publication.step), []).append(publication)
        if not by_key or not waiting:
            return []
        whole = [parts for parts in by_key.values() if len({p.ep_rank for p in parts} & alive) >= waiting]
        if waiting < self.size:
            whole = [parts for parts in whole if now - _end(parts) >= SETTLE_SECONDS]
        if whole:
            return max(whole, key=_end)
        patience = max(LATE_SECONDS, *(2 * p.seconds for parts in by_key.values() for p in parts))
        if now - self.newest <= patience:
            return []
        return max(by_key.values(), key=lambda parts: (len(parts), _end(parts)))


class Engines:
    """All groups of a directory: several engines, several pipeline stages, several models."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], _Group] = {}
        self._spans: dict[tuple[str, str], tuple[float, float]] = {}
        self._shared: set[str] = set()

    def take(
        self, publications: Iterable[Publication], alive: AbstractSet[Place], now: float
    ) -> tuple[list[Event], bool, list[str]]:
        """Return the events that are complete now, whether a pass was complete, and what did not fit together.

        An interval in which the engine counted nothing completes a pass without an event: that is not a load of 0.
        """
        problems: list[str] = []
        for publication in publications:
            where = (publication.instance, publication.pp_rank)
            if where not in self._groups and len(self._groups) >= MAX_GROUPS:
                problems.append(f"more than {MAX_GROUPS} groups of ranks: {publication.instance!r} is left out")
                continue
            self._groups.setdefault(where, _Group()).add(publication)
        self._forget(now)
        events: list[Event] = []
        news = False
        stages = {instance: min(s for i, s in self._groups if i == instance) for instance, _ in self._groups}
        for (instance, stage), group in self._groups.items():
            parts = group.complete({rank for i, s, rank in alive if (i, s) == (instance, stage)}, now)
            if not parts:
                continue
            news = True
            names = {model.model: self._name(model.model, instance, now) for model in parts[0].models}
            loads, misfits = _loads(group, parts)
            events.extend(replace(part, model=names.get(part.model, part.model)) for part in loads)
            problems.extend(f"instance {instance!r}: {misfit}" for misfit in misfits)
            if stage == stages[instance]:
                events.extend(_rebalances(group, parts, names.values()))
        return events, news, problems

    def _name(self, model: str, instance: str, now: float) -> str:
        """Return the model's name, with the instance where several engines serve it at the same time.

        An engine that was replaced by another does not publish after the other's first publication.
        """
        first, _ = self._spans.get((model, instance), (now, now))
        self._spans[model, instance] = (first, now)
        others = [span for (name, other), span in self._spans.items() if name == model and other != instance]
        if not others:
            self._shared.discard(model)
        elif any(last >= first for _, last in others):
            self._shared.add(model)
        return f"{model} ({instance})" if model in self._shared else model

    def _forget(self, now: float) -> None:
        for where in [where for where, group in self._groups.items() if now - group.newest > FORGET_SECONDS]:
            del self._groups[where]
        for key in [key for key, (_, last) in self._spans.items() if now - last > FORGET_SECONDS]:
            del self._spans[key]


def _end(parts: Sequence[Publication]) -> float:
    return max(part.time for part in parts)


def _loads(group: _Group, parts: list[Publication]) -> tuple[list[ExpertLoads], list[str]]:
    """Return the loads of a pass since the last one, and make it the baseline of the next."""
    first = parts[0]
    sums, misfits = _sums(parts)
    ranks = frozenset((part.ep_rank, part.run) for part in parts)
    before = group.baseline
    group.baseline = _Baseline(_end(parts), ranks, sums)
    for rank in group.ranks.values():
        while rank.kept and rank.kept[0].time <= group.baseline.time:
            rank.kept.popleft()
    loads: list[ExpertLoads] = []
    for name, now in sums.items():
        # Totals bridge publications that were not read, as long as the same processes published both ends.
        then = before.sums.get(name) if before and before.ranks == ranks else None
        if then is not None and (then.first.rows, then.first.columns) != (now.first.rows, now.first.columns):
            then = None
        if (now.recorded if then is None else now.total_recorded - then.total_recorded) <= 0:
            continue  # steps that were not counted are no load of 0
        counts: Sequence[int] = now.counts if then is None else array("q", map(sub, now.totals, then.totals))
        seconds = first.seconds if then is None or before is None else _end(parts) - before.time
        rows = _rows(counts, now.first.columns)
        part = ExpertLoads(
            model=name, scope="rank", counts=placed(rows, first.ep_size), seconds=seconds, time=_end(parts),
            layers=_layers(now.first, first), ranks_seen=len(parts), ranks_expected=first.ep_size)
        loads.append(part)
        if now.first.logical is not None and now.settled:
            if then is not None and then.first.map_number != now.first.map_number:
                # Experts have moved since the last pass that was read: only this interval has one map.
                rows, seconds = _rows(now.counts, now.first.columns), first.seconds
            loads.append(replace(
                part, scope="expert", counts=_logical(rows, now.first.logical), seconds=seconds))
    return loads, misfits


def _sums(parts: Iterable[Publication]) -> tuple[dict[str, _Sum], list[str]]:
    sums: dict[str, _Sum] = {}
    misfits: list[str] = []
    for part in parts:
        for model in part.models:
            so_far = sums.get(model.model)
            if so_far is None:
                sums[model.model] = _Sum(
                    model, model.counts, model.totals, model.recorded, model.total_recorded, model.settled)
                continue
            if (model.rows, model.columns) != (so_far.first.rows, so_far.first.columns):
                misfits.append(f"rank {part.ep_rank} has {model.rows} x {model.columns} counts of {model.model!r}, "
                               f"others {so_far.first.rows} x {so_far.first.columns}")
                continue
            sums[model.model] = _Sum(
                so_far.first,
                array("q", map(add, so_far.counts, model.counts)), array("q", map(add, so_far.totals, model.totals)),
                so_far.recorded + model.recorded, so_far.total_recorded + model.total_recorded,
                so_far.settled and model.settled)
    return sums, misfits


def _rows(counts: Sequence[int], columns: int) -> list[Sequence[int]]:
    return [counts[start : start + columns] for start in range(0, len(counts), columns)]


def _logical(rows: Sequence[Sequence[int]], mapping: array[int]) -> tuple[tuple[int, ...], ...]:
    """Add the loads of the replicas of each logical expert."""
    experts = max(mapping) + 1
    result = []
    for index, row in enumerate(rows):
        loads = [0] * experts
        for expert, load in zip(mapping[index * len(row) : (index + 1) * len(row)], row, strict=True):
            if expert >= 0:
                loads[expert] += load
        result.append(tuple(loads))
    return tuple(result)


def _layers(model: ModelCounts, publication: Publication) -> tuple[int, ...]:
    if model.layers or publication.pp_size == 1:
        return model.layers
    return tuple(range(publication.pp_rank * STAGE, publication.pp_rank * STAGE + model.rows))


def _rebalances(group: _Group, parts: list[Publication], models: Iterable[str]) -> list[Rebalance]:
    """Return the rearrangements that ended since the last pass; their number is that of the lowest rank's process.

    Only the first rank of the group waits for the device, so that the longest of the durations is the true one.
    """
    leader = parts[0]
    ended = [event for event in leader.rearrangements if event.seconds is not None]
    newest = max((event.number for event in ended), default=0)
    if group.leader != leader.run:
        group.leader, group.rearrangements = leader.run, newest
        return []
    longest: dict[int, float] = {}
    for part in parts:
        for event in part.rearrangements:
            longest[event.number] = max(longest.get(event.number, 0.0), event.seconds or 0.0)
    news = [event for event in ended if event.number > group.rearrangements]
    group.rearrangements = max(newest, group.rearrangements)
    return [Rebalance(model, event.time, longest[event.number]) for event in news for model in models]
