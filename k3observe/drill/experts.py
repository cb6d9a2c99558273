"""The expert loads of a simulated engine, published as the plugin inside a real one would."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Publication, Rearrangement, write

PASSES = 100
"""Forward passes between two publications, the plugin's default."""


class Experts:
    """An expert-parallel group whose routing can be skewed: rank ``hot`` gets ``factor`` times the mean.

    ``bad_layer`` names a layer that is uneven whatever the others are.
    """

    def __init__(self, folder: Path, model: str, ranks: int = 8, layers: int = 92, instance: str = "engine-0") -> None:
        self._folder, self._model, self._ranks, self._layers = folder, model, ranks, layers
        self._instance = instance
        self._random = random.Random(instance)  # noqa: S311 - noise, not secrets
        self.hot: tuple[int, float] | None = None
        """The rank that gets more than the others, and how many times the mean."""
        self.bad_layer: int | None = None
        self._rearrangements: tuple[Rearrangement, ...] = ()
        self._sequence = 0
        self._totals = [array("q", bytes(8 * ranks * layers)) for _ in range(ranks)]

    def skew(self, hot: int, factor: float) -> None:
        """Send ``factor`` times the mean to one rank in every layer; its share comes from the others."""
        if not 1 <= factor <= self._ranks:
            raise ValueError(f"a rank's load is 1 to {self._ranks} times the mean, not {factor}")
        self.hot = (hot, factor)

    def even(self) -> None:
        """Spread the load evenly again."""
        self.hot = None

    def rebalance(self, now: float, seconds: float = 2.1) -> None:
        """Rearrange the experts, which evens the load; it took so many seconds."""
        self.hot = None
        number = len(self._rearrangements) + 1
        self._rearrangements += (Rearrangement(number=number, time=now - seconds, seconds=seconds),)

    def publish(self, now: float, seconds: float) -> None:
        """Write one interval of every rank's file."""
        self._sequence += 1
        for rank in range(self._ranks):
            counts = array("i", self._row())
            totals = self._totals[rank]
            for index, count in enumerate(counts):
                totals[index] += count
            passes = self._sequence * PASSES
            model = ModelCounts(
                model=self._model, rows=self._layers, columns=self._ranks, steps=PASSES, recorded=PASSES,
                total_steps=passes, total_recorded=passes, counts=counts, totals=totals,
            )  # fmt: skip
            write(self._folder, Publication(
                engine="vllm", engine_version="0.33.0", instance=self._instance, run=f"{self._instance}-{rank}",
                pp_rank=0, pp_size=1, ep_rank=rank, ep_size=self._ranks, detail="rank", sequence=self._sequence,
                cycle=0, step=passes, time=now, seconds=seconds, dropped=0, rearrangements=self._rearrangements,
                models=(model,),
            ))  # fmt: skip

    def _row(self) -> Iterator[int]:
        """What one rank's router sends to each rank, layer by layer: even within 3 % but for the hot one."""
        shares = [1.0] * self._ranks
        if self.hot is not None:
            hot, factor = self.hot
            shares = [(self._ranks - factor) / (self._ranks - 1)] * self._ranks
            shares[hot] = factor
        for layer in range(self._layers):
            for rank, share in enumerate(shares):
                favoured = 1.9 if (layer, rank) == (self.bad_layer, 1) else 1.0
                yield int(5000 * share * favoured * self._random.uniform(0.97, 1.03))


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
