"""Sources that are read again and again: an engine's metrics, a file of counts, a page of counts."""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts import counts
from k3observe.exporters.experts.balance import placed
from k3observe.exporters.experts.counters import Increases
from k3observe.exporters.experts.loads import Event, ExpertLoads
from k3observe.exporters.experts.source import Sink

Interpret = Callable[[bytes, float], Iterable[Event]]


class PolledSource:
    """Reads ``where`` every ``seconds`` and hands over what ``interpret(text, unix time)`` makes of it.

    ``read`` raises OSError and ``interpret`` ValueError where that fails.
    """

    reasons = ("unreachable", "invalid")

    def __init__(self, name: str, where: str, read: Callable[[], bytes], interpret: Interpret, seconds: float) -> None:
        self.name, self._where = name, where
        self._read, self._interpret, self._seconds = read, interpret, seconds
        self._stop = threading.Event()

    def start(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        """Start reading in a daemon thread."""
        threading.Thread(
            target=self._run, args=(sink, status, log), name=f"experts-{self.name}", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def _run(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        said = ""
        while not self._stop.is_set():
            began = time.monotonic()
            reason, problem = "", ""
            try:
                for event in self._interpret(self._read(), time.time()):
                    sink(event)
            except OSError as error:
                reason, problem = "unreachable", str(error)
            except ValueError as error:
                reason, problem = "invalid", f"{self._where}: {error}"
            seconds = time.monotonic() - began
            if reason:
                status.failed(reason, seconds)
            else:
                status.succeeded(seconds)
            if problem and problem != said:
                log.warning("%s", problem)
            said = problem
            self._stop.wait(max(0.0, self._seconds - seconds))


def read_file(path: Path, max_bytes: int = counts.MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError, also where it is larger."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size > max_bytes:
            raise OSError(f"{path} has {status.st_size} bytes: at most {max_bytes} are read")
        return file.read(max_bytes + 1)


class CountsReader:
    """Interprets documents of counts: each window once, cumulative counts by their increase."""

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._increases = Increases()
        self._newest = float("-inf")

    def __call__(self, text: bytes, now: float) -> list[Event]:
        """Return the loads since the document before. Raises CountsError."""
        document = counts.parse(text, now=now, model=self._model)
        if document.kind == "window":
            if document.time is None or document.time <= self._newest:
                return []
            self._newest = document.time
        events: list[Event] = []
        for loads, ranks in zip(document.loads, document.placed_on, strict=True):
            interval = self._increases.of(loads) if document.kind == "cumulative" else loads
            if interval is not None:
                events.append(interval)
                if ranks is not None:
                    events.append(on_ranks(interval, ranks))
        return events


def on_ranks(loads: ExpertLoads, ranks: int) -> ExpertLoads:
    """Return the loads of ranks that hold the experts in blocks of equal size."""
    return replace(
        loads, scope="rank", counts=placed(loads.counts, ranks), columns=(),
        ranks_expected=loads.ranks_expected or ranks)
