"""A thread that makes one call again and again, and tells when a call is overdue.

A call into the driver can hang for minutes and cannot be stopped. So each card has a thread of its own, a second call
is never started beside one that is out, and a result that comes after the deadline is thrown away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias


class Gate:
    """Lets calls through while the driver is attached, and knows how many are out."""

    def __init__(self) -> None:
        self._open, self._out = False, 0
        self._changed = threading.Condition()

    def open(self) -> None:
        """Let calls through."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Hold new calls back and wait for those that are out; return whether none is."""
        with self._changed:
            self._open = False
            return self._changed.wait_for(lambda: self._out == 0, seconds)

    def enter(self, seconds: float) -> bool:
        """Wait for the gate to open and count a call; False when it stayed closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._open, seconds):
                return False
            self._out += 1
            return True

    def leave(self) -> None:
        """Count a call back."""
        with self._changed:
            self._out -= 1
            self._changed.notify_all()


Work: TypeAlias = "Callable[[Callable[[], bool]], Callable[[], None]]"
"""Takes whether it is overdue, to give up between two steps, and returns what publishes its result."""


class Lane:
    """One thread, one call of ``work`` at a time, ``interval`` seconds between them, ``timeout`` seconds for each.

    ``late`` is called once for a call that is overdue. It and what publishes a result run one at a time.
    """

    def __init__(
        self, name: str, work: Work, late: Callable[[], None], interval: float, timeout: float,
        gate: Gate | None = None,
    ) -> None:
        self._work, self._tell_late, self._gate = work, late, gate
        self._interval, self._timeout = interval, timeout
        self._lock = threading.Lock()
        self._started: float | None = None
        self._late = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the call that is out, whose result is thrown away."""
        self._stop.set()

    def check(self) -> None:
        """Find out, once, that the call in flight is overdue."""
        with self._lock:
            if not self._late and self._overdue() and not self._stop.is_set():
                self._late = True
                self._tell_late()

    def _overdue(self) -> bool:
        return self._started is not None and time.monotonic() - self._started > self._timeout

    def _begin(self) -> None:
        with self._lock:
            self._started, self._late = time.monotonic(), False

    def _run(self) -> None:
        while not self._stop.is_set():
            self._begin()  # time before a closed gate counts: an attachment that hangs keeps every card from an answer
            while self._gate is not None and not self._gate.enter(1):
                if self._stop.is_set():
                    return
            self._begin()
            try:
                publish = self._work(self._overdue)
            finally:
                if self._gate is not None:
                    self._gate.leave()
            self.check()
            with self._lock:
                if not self._late and not self._stop.is_set():
                    publish()
                self._started = None
            self._stop.wait(self._interval)
