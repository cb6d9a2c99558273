"""Sources that are read again and again: an engine's metrics, a file of counts, a page of counts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts import counts
from k3observe.exporters.experts.balance import placed
from k3observe.exporters.experts.counters import Increases
from k3observe.exporters.experts.loads import Event, ExpertLoads
from k3observe.exporters.experts.source import Sink

MAX_AHEAD_SECONDS = 60.0
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
            except Exception as error:  # the thread must live on
                reason, problem = "invalid", f"{self._where}: {type(error).__name__}: {error}"
            seconds = time.monotonic() - began
            if reason:
                status.failed(reason, seconds)
            else:
                status.succeeded(seconds)
            if problem and problem != said:
                log.warning("%s", problem)
            said = problem
            self._stop.wait(max(0.0, self._seconds - seconds))


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
            if document.time is None or document.time > now + MAX_AHEAD_SECONDS:
                raise counts.CountsError(f"time: {document.time} is in the future: compare the clocks")
            if self._newest > now + MAX_AHEAD_SECONDS:
                self._newest = float("-inf")  # the clock was put back
            if document.time <= self._newest:
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
