"""What the collector asks of a source of expert loads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts.loads import Event

Sink = Callable[[Event], None]


class Source(Protocol):
    """Where expert loads come from: an engine's log or metrics, a file of counts, a plugin in the engine.

    ``reasons`` are the values of the label ``reason`` that the source passes to ``SourceStatus.failed``; at most
    three, as they are part of the stated number of series.
    """

    @property
    def name(self) -> str:
        """Value of the label ``source``."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons that the source can fail for."""

    def start(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        """Start a daemon thread that passes each reading to ``sink`` and its success to ``status``; return at once.

        ``sink`` may be called from any thread, does not block and raises nothing. Input that cannot be read is
        reported to ``status`` and ``log``, and tried again; it never ends the thread.
        """

    def stop(self) -> None:
        """Ask the thread to end, and return at once."""
