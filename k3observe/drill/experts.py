"""The expert loads of a simulated engine, published as the plugin inside a real one would."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import add
from pathlib import Path

from k3observe.exporters.vllm_plugin.fileformat import (
    MAX_REARRANGEMENTS,
    ModelCounts,
    Publication,
    Rearrangement,
    write,
)

PASSES = 100
"""Forward passes between two publications, the plugin's default."""

SLOTS = 8
"""Physical experts of a rank. One of each rank's is a redundant copy."""

TOKENS = 5000
"""What one rank's router sends to a rank with the mean load, in each layer of an interval."""

_NOISE = 997
_FAVOURED = 1.9

Popularity = tuple[tuple[float, ...], ...]
"""Tokens of each logical expert, layer by layer; the mean is 1."""


def arranged(popularity: Sequence[float], ranks: int) -> list[int]:
    """The logical expert of each physical one in a layer, so that ranks are even: as vLLM's load balancer does it.

    Redundant copies go to the experts with the most tokens each, then the heaviest is put on the lightest rank.
    """
    copies = [1] * len(popularity)
    for _ in range(ranks * SLOTS - len(popularity)):
        heaviest = max(range(len(popularity)), key=lambda expert: popularity[expert] / copies[expert])
        copies[heaviest] += 1
    replicas = sorted(
        ((popularity[expert] / count, expert) for expert, count in enumerate(copies) for _ in range(count)),
        reverse=True)  # fmt: skip
    held: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for load, expert in replicas:
        free = (rank for rank in range(ranks) if len(held[rank]) < SLOTS)
        lightest = min(free, key=lambda rank: (loads[rank], rank))
        held[lightest].append(expert)
        loads[lightest] += load
    return [expert for rank in held for expert in rank]


@dataclass(frozen=True)
class _Routing:
    """What routers want, and where the experts are: the counts that follow from both."""

    popularity: Popularity
    placement: tuple[tuple[int, ...], ...]
    number: int
    """Grows by one with every rearrangement."""

    def counts(self) -> list[int]:
        """Tokens of each physical expert, layer after layer: the copies of an expert share its tokens."""
        found = []
        for wanted, placed in zip(self.popularity, self.placement, strict=True):
            scale = TOKENS * len(placed) / SLOTS / sum(wanted)
            found += [int(scale * wanted[expert] / placed.count(expert)) for expert in placed]
        return found


class Experts:
    """An expert-parallel group whose routing can be skewed, and whose experts can be rearranged."""

    def __init__(self, folder: Path, model: str, ranks: int = 8, layers: int = 92, instance: str = "engine-0") -> None:
        self._folder, self._model, self._ranks, self._layers = folder, model, ranks, layers
        self._instance = instance
        random_ = random.Random(instance)  # noqa: S311 - noise, not secrets
        self._noise = [random_.uniform(0.97, 1.03) for _ in range(_NOISE)]
        self._even = ((1.0,) * (ranks * SLOTS - ranks),) * layers
        self._move(_Routing(self._even, (tuple(arranged(self._even[0], ranks)),) * layers, 0))
        self.hot: tuple[int, float] | None = None
        """The rank that gets more than the others, and how many times the mean."""
        self._favoured: int | None = None
        self._rearrangements: tuple[Rearrangement, ...] = ()
        self._sequence = self._published_map = 0
        self._totals = [array("q", bytes(8 * ranks * SLOTS * layers)) for _ in range(ranks)]

    def _move(self, routing: _Routing) -> None:
        self._now = routing, routing.counts()

    @property
    def _routing(self) -> _Routing:
        return self._now[0]

    def skew(self, hot: int, factor: float) -> None:
        """Make experts on one rank popular, in every layer, until it gets ``factor`` times the mean."""
        if not 1 <= factor < self._ranks:
            raise ValueError(f"a rank's load is 1 to below {self._ranks} times the mean, not {factor}")
        if self.hot != (hot, factor):
            self.hot, self._favoured = (hot, factor), None
            self._move(_Routing(self._popular(self._even, hot, factor), self._routing.placement, self._routing.number))

    def _popular(self, popularity: Popularity, rank: int, factor: float, only: int | None = None) -> Popularity:
        """Raise two experts that only ``rank`` has, in each layer or in one; how much of it is the first's differs."""
        found = list(popularity)
        for layer in range(self._layers) if only is None else (only,):
            wanted, placed = list(popularity[layer]), self._routing.placement[layer]
            here = placed[rank * SLOTS : (rank + 1) * SLOTS]
            before = sum(wanted[expert] / placed.count(expert) for expert in here)
            share = factor / self._ranks
            excess = (share * sum(wanted) - before) / (1 - share)
            single = [expert for expert in here if placed.count(expert) == 1]
            first = 0.6 + 0.4 * (layer * 37 % self._layers) / self._layers
            wanted[single[layer % len(single)]] += first * excess
            wanted[single[(layer + 1) % len(single)]] += (1 - first) * excess
            found[layer] = tuple(wanted)
        return tuple(found)

    def favour(self, layer: int | None) -> None:
        """Make experts of rank 1 popular in one layer, or none, whatever the other layers are."""
        if self._favoured == layer:
            return
        routing, popularity = self._routing, self._routing.popularity
        if self._favoured is not None:
            popularity = tuple(
                self._even[row] if row == self._favoured else wanted for row, wanted in enumerate(popularity))
        self._favoured = layer
        if layer is not None:
            popularity = self._popular(popularity, 1, _FAVOURED, only=layer)
        self._move(_Routing(popularity, routing.placement, routing.number))

    def even(self) -> None:
        """Make all experts equally popular again."""
        self.hot, self._favoured = None, None
        self._move(_Routing(self._even, self._routing.placement, self._routing.number))

    def rebalance(self, now: float, seconds: float = 2.1) -> None:
        """Rearrange the experts for what routers want now, which took so many seconds."""
        self.hot = None
        routing = self._routing
        placement = tuple(tuple(arranged(wanted, self._ranks)) for wanted in routing.popularity)
        self._move(_Routing(routing.popularity, placement, routing.number + 1))
        event = Rearrangement(number=routing.number + 1, time=now - seconds, seconds=seconds)
        self._rearrangements = (*self._rearrangements, event)[-MAX_REARRANGEMENTS:]

    def publish(self, now: float, seconds: float) -> None:
        """Write one interval of every rank's file."""
        self._sequence += 1
        routing, base = self._now
        settled, self._published_map = routing.number == self._published_map, routing.number
        logical = array("h", [expert for layer in routing.placement for expert in layer])
        noise = self._noise * (len(base) // _NOISE + 2)
        for rank in range(self._ranks):
            start = (self._sequence * 131 + rank * 17) % _NOISE
            counts = array("i", [int(count * factor) for count, factor in zip(base, noise[start:], strict=False)])
            self._totals[rank] = totals = array("q", map(add, self._totals[rank], counts))
            passes = self._sequence * PASSES
            model = ModelCounts(
                model=self._model, rows=self._layers, columns=self._ranks * SLOTS, steps=PASSES, recorded=PASSES,
                total_steps=passes, total_recorded=passes, counts=counts, totals=totals, logical=logical,
                settled=settled, map_number=routing.number,
            )  # fmt: skip
            write(self._folder, Publication(
                engine="vllm", engine_version="0.33.0", instance=self._instance, run=f"{self._instance}-{rank}",
                pp_rank=0, pp_size=1, ep_rank=rank, ep_size=self._ranks, detail="expert", sequence=self._sequence,
                cycle=0, step=passes, time=now, seconds=seconds, dropped=0, rearrangements=self._rearrangements,
                models=(model,),
            ))  # fmt: skip


@contextmanager
def publishing(experts: Experts, interval: float = 1.0) -> Iterator[Experts]:
    """Publish every ``interval`` seconds until the block ends."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(interval):
            experts.publish(time.time(), interval)

    experts.publish(time.time(), interval)
    thread = threading.Thread(target=run, name="simulated-experts", daemon=True)
    thread.start()
    try:
        yield experts
    finally:
        done.set()
        thread.join(timeout=5)
