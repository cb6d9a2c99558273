"""Engines whose ranks publish files as the plugin does, and the source that reads them."""

from __future__ import annotations

import logging
import os
import random
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CollectorRegistry

from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.experts.loads import Event, ExpertLoads
from k3observe.exporters.experts.plugin import PluginSource
from k3observe.exporters.vllm_plugin import fileformat
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Publication, Rearrangement

LAYERS, RANKS, LOCAL = 3, 4, 2
EXPERTS = RANKS * LOCAL


class Engine:
    """An engine of some ranks; each rank's router sends to all of them, and ``sent`` is the truth of an interval."""

    def __init__(self, folder: Path, name: str = "e", *, model: str = "moe", stage: int = 0, stages: int = 1) -> None:
        self.folder, self.name, self.model, self.stage, self.stages = folder, name, model, stage, stages
        self.random = random.Random(name)
        self.totals = [[0] * (LAYERS * EXPERTS) for _ in range(RANKS)]
        self.sequence = [0] * RANKS
        self.steps = 0
        self.sent = [0] * (LAYERS * EXPERTS)
        self.mapping: list[int] = list(range(EXPERTS)) * LAYERS
        self.map_number = 0
        self.settled = True
        self.recorded = 100
        self.total_recorded = 0
        self.events: tuple[Rearrangement, ...] = ()
        self.weights = [1.0] * EXPERTS

    def interval(self, ranks: Sequence[int] = range(RANKS), *, write: Sequence[int] | None = None) -> None:
        """Let ``ranks`` route for a while and publish, those in ``write`` into a file."""
        self.steps += 100
        self.total_recorded += self.recorded
        self.sent = [0] * (LAYERS * EXPERTS)
        for rank in ranks:
            counts = [
                int(self.random.randint(50, 150) * self.weights[i % EXPERTS]) if self.recorded else 0
                for i in range(LAYERS * EXPERTS)]
            self.sent = [a + b for a, b in zip(self.sent, counts, strict=True)]
            self.totals[rank] = [a + b for a, b in zip(self.totals[rank], counts, strict=True)]
            self.sequence[rank] += 1
            if write is None or rank in write:
                self.write(rank, counts)

    def write(self, rank: int, counts: Sequence[int], **changes: Any) -> Path:
        model = ModelCounts(
            model=self.model, rows=LAYERS, columns=EXPERTS, steps=100, recorded=self.recorded,
            total_steps=self.steps, total_recorded=self.total_recorded, counts=array("i", counts),
            totals=array("q", self.totals[rank]), logical=array("h", self.mapping), settled=self.settled,
            map_number=self.map_number)
        values: dict[str, Any] = {
            "engine": "vllm", "engine_version": "0.33.0", "instance": self.name, "run": f"{self.name}{rank}",
            "pp_rank": self.stage, "pp_size": self.stages, "ep_rank": rank, "ep_size": RANKS, "detail": "expert",
            "sequence": self.sequence[rank], "cycle": 0, "step": self.steps, "time": time.time(), "seconds": 0.5,
            "dropped": 0, "rearrangements": self.events, "models": (model,)}
        return fileformat.write(self.folder, Publication(**{**values, **changes}))

    def file(self, rank: int) -> Path:
        return self.folder / fileformat.file_name(self.name, self.stage, rank)

    def by_rank(self, counts: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
        counts = self.sent if counts is None else counts
        rows = [counts[i : i + EXPERTS] for i in range(0, len(counts), EXPERTS)]
        return tuple(tuple(sum(row[r * LOCAL : (r + 1) * LOCAL]) for r in range(RANKS)) for row in rows)


class Reader:
    """The source, looked at by hand."""

    def __init__(self, folder: Path) -> None:
        self.source = PluginSource(folder, 1.0)
        self.status = SourceStatus("experts", "plugin", PluginSource.reasons)

    def look(self) -> list[Event]:
        events: list[Event] = []
        self.source.look(events.append, self.status, logging.getLogger("experts"))
        return events

    def ranks(self) -> list[ExpertLoads]:
        return [event for event in self.look() if isinstance(event, ExpertLoads) and event.scope == "rank"]

    def value(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        status = self.status

        class Families:
            def collect(self) -> Any:
                return source_families([status])

        registry.register(Families())  # type: ignore[arg-type]
        return registry.get_sample_value(name, {"collector": "experts", "source": "plugin", **labels})


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)
