"""What the process asks of a collector, and the state of a source that every collector reports.

A collector owns threads that read a device, a log or an engine and keep the newest snapshot. ``collect`` renders that
snapshot and never waits for a device: a hung driver call must not delay a scrape.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol

from prometheus_client.core import Metric

from k3observe.exporters import families


class Collector(Protocol):
    """One of ``gpu``, ``npu``, ``kv-cache``, ``experts``."""

    name: str

    def start(self) -> None:
        """Start the reading threads and return at once."""

    def stop(self) -> None:
        """Ask the threads to end and return at once."""

    def ready(self) -> bool:
        """Whether the first reading, good or bad, is in."""

    def collect(self) -> Iterable[Metric]:
        """Yield metric families from the newest snapshot, without waiting."""


class SourceStatus:
    """Whether a source could be read, since when, how long it took and why not (thread-safe).

    ``reasons`` are the values of the label ``reason`` that can be enumerated: they start at 0, so that the first
    error is seen by ``increase()``.
    """

    def __init__(self, collector: str, source: str, reasons: Iterable[str] = ()) -> None:
        self.collector, self.source = collector, source
        self._lock = threading.Lock()
        self._up: bool | None = None
        self._last_success: float | None = None
        self._seconds: float | None = None
        self._errors: dict[str, int] = dict.fromkeys(reasons, 0)

    def succeeded(self, seconds: float | None = None) -> None:
        """Note a good reading that took ``seconds``."""
        with self._lock:
            self._up, self._last_success, self._seconds = True, time.time(), seconds

    def failed(self, reason: str, seconds: float | None = None, *, down: bool = True) -> None:
        """Note an error; ``down=False`` counts it without calling the source down."""
        with self._lock:
            self._errors[reason] = self._errors.get(reason, 0) + 1
            if down:
                self._up, self._seconds = False, seconds

    @property
    def tried(self) -> bool:
        """Whether a read has ended, well or badly."""
        return self._up is not None


def source_families(statuses: Iterable[SourceStatus]) -> Iterable[Metric]:
    """Yield the ``k3_source_*`` families of some sources."""
    up, last = families.SOURCE_UP.new(), families.SOURCE_LAST_SUCCESS.new()
    seconds, errors = families.SOURCE_READ_SECONDS.new(), families.SOURCE_ERRORS.new()
    for status in statuses:
        labels = (status.collector, status.source)
        with status._lock:
            if status._up is not None:
                up.add_metric(labels, float(status._up))
            if status._last_success is not None:
                last.add_metric(labels, status._last_success)
            if status._seconds is not None:
                seconds.add_metric(labels, status._seconds)
            for reason, count in sorted(status._errors.items()):
                errors.add_metric((*labels, reason), count)
    yield from (up, last, seconds, errors)
