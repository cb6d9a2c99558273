"""The daemon thread that waits for the device, keeps running totals and replaces the rank's file."""

from __future__ import annotations

import os
import queue
import threading
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from k3observe.exporters.vllm_plugin import fileformat
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Publication, Rearrangement
from k3observe.exporters.vllm_plugin.settings import Settings

LEFT_OVER_SECONDS = 600.0
"""Files of this rank's place that no writer has touched for so long belong to an engine that is gone."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One model's counts on their way to the host; ``first_map`` is the map before the first interval."""

    model: str
    recorded: int
    counts: Any
    placement: Any
    first_map: Any
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """One publication; ``settled_in_step`` says that a changed map changed only after the interval's last pass."""

    sequence: int
    cycle: int
    step: int
    time: float
    seconds: float
    dropped: int
    steps: int
    rearrangements: tuple[Rearrangement, ...]
    settled_in_step: bool
    intervals: list[Interval]
    event: Any


class Outcome(Protocol):
    """Who is told whether a file was written, and says whether to go on."""

    on: bool

    def written(self) -> None:
        """A file was written."""

    def failed(self, error: Exception) -> None:
        """A file could not be written."""


@dataclass(slots=True)
class _Running:
    """Totals of one model, and the map that was in force at the end of the last interval."""

    totals: Any
    steps: int = 0
    recorded: int = 0
    placement: Any = None
    map_number: int = 0


class Writer:
    """A bounded queue and its thread, which ends when the process does, ``stop`` is called or the plugin is off."""

    def __init__(
        self, outcome: Outcome, settings: Settings, *, run: str, engine_version: str,
        ep_rank: int, ep_size: int, pp_rank: int, pp_size: int,
    ) -> None:
        self._outcome, self._settings = outcome, settings
        self._run_name, self._version = run, engine_version
        self._ep_rank, self._ep_size, self._pp_rank, self._pp_size = ep_rank, ep_size, pp_rank, pp_size
        self._running: dict[str, _Running] = {}
        self._stopped = False
        self._queue: queue.Queue[Job | None] = queue.Queue(maxsize=2)
        threading.Thread(target=self._loop, name="k3observe-experts", daemon=True).start()

    def full(self) -> bool:
        """Whether the writer is behind."""
        return self._queue.full()

    def put(self, job: Job) -> None:
        """Queue a publication; the caller has seen that there is room and is the only one to put."""
        self._queue.put_nowait(job)

    def stop(self) -> None:
        """Let the thread end, as a new group has a writer of its own."""
        self._stopped = True
        with suppress(queue.Full):
            self._queue.put_nowait(None)

    def _loop(self) -> None:
        path: Path | None = None
        while self._outcome.on and not self._stopped:
            try:
                job = self._queue.get(timeout=fileformat.HEARTBEAT_SECONDS)
            except queue.Empty:
                if path is not None and not self._stopped:
                    with suppress(OSError):
                        os.utime(path)
                continue
            if job is None:
                return
            try:
                if job.event is not None:
                    job.event.synchronize()  # sleeps and lets the interpreter go on: the event is a blocking one
                written = fileformat.write(self._settings.directory, self._publication(job))
                if path is None:
                    self._clear_left_over(written)
                path = written
                self._outcome.written()
            except Exception as error:
                self._outcome.failed(error)

    def _publication(self, job: Job) -> Publication:
        return Publication(
            engine="vllm", engine_version=self._version, instance=self._settings.instance, run=self._run_name,
            pp_rank=self._pp_rank, pp_size=self._pp_size, ep_rank=self._ep_rank, ep_size=self._ep_size,
            detail=self._settings.detail, sequence=job.sequence, cycle=job.cycle, step=job.step, time=job.time,
            seconds=job.seconds, dropped=job.dropped, rearrangements=job.rearrangements,
            models=tuple(self._model(job, interval) for interval in job.intervals))

    def _model(self, job: Job, interval: Interval) -> ModelCounts:
        counts = interval.counts.numpy()
        rows, columns = counts.shape
        if self._settings.detail == "rank":
            columns = self._ep_size
            counts = counts.reshape(rows, columns, -1).sum(axis=-1, dtype="int32")
        running = self._running.get(interval.model)
        if running is None or running.totals.shape != counts.shape:
            running = self._running[interval.model] = _Running(counts.astype("int64") * 0)
        if interval.first_map is not None:
            running.placement = interval.first_map.numpy().astype("int16")
        running.totals += counts
        running.steps += job.steps
        running.recorded += interval.recorded
        logical, number, settled = self._map(running, interval, job)
        return ModelCounts(
            model=interval.model, rows=rows, columns=columns, steps=job.steps, recorded=interval.recorded,
            total_steps=running.steps, total_recorded=running.recorded,
            counts=array("i", counts.astype("=i4").tobytes()), totals=array("q", running.totals.tobytes()),
            logical=logical, settled=settled, map_number=number, layers=interval.layers)

    @staticmethod
    def _map(running: _Running, interval: Interval, job: Job) -> tuple[array[int] | None, int, bool]:
        """Return the map of the interval, its number, and whether it held for all of the interval."""
        if interval.placement is None:
            return None, 0, True
        before, number = running.placement, running.map_number
        after = interval.placement.numpy().astype("int16")
        changed = not (before == after).all()
        if changed:
            running.placement, running.map_number = after, number + 1
        return array("h", before.tobytes()), number, not changed or job.settled_in_step

    def _clear_left_over(self, written: Path) -> None:
        """Remove what earlier engines left in this rank's place, so that restarts do not fill the directory."""
        mine = fileformat.parse_name(written.name)
        oldest = time.time() - LEFT_OVER_SECONDS
        for path in written.parent.iterdir():
            name = fileformat.parse_name(path.name)
            if mine and name and name != mine and name[1:] == mine[1:]:
                with suppress(OSError):
                    if path.lstat().st_mtime < oldest:
                        path.unlink()
