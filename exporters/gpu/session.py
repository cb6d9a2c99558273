"""The attachment to the driver: made, made again with back-off when it breaks, and what the driver lists."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from k3observe.exporters.gpu.lane import Gate
from k3observe.exporters.gpu.nvml import Nvml, NvmlError

BROKEN = frozenset({"uninitialized", "unknown", "driver_not_loaded"})
"""Errors after which only a new attachment helps."""
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Listing:
    """What the driver lists."""

    count: int
    driver: str


class Session:
    """Used by one thread; ``request_attach`` and ``works`` may come from any.

    ``attached`` is called after each attachment, before calls on cards are let through the gate.
    """

    def __init__(self, nvml: Nvml, gate: Gate, pause: float, attached: Callable[[], None]) -> None:
        self._nvml, self._gate, self._attached = nvml, gate, attached
        self._first_pause = self._pause = min(pause, LONGEST_PAUSE)
        self._not_before = 0.0
        self._was_attached = False
        self._wanted = threading.Event()
        self._wanted.set()
        self._driver = ""

    def request_attach(self) -> None:
        """Have the driver attached anew at the next check that the back-off allows."""
        self._wanted.set()

    def works(self) -> None:
        """Note a good reading: the next break starts with the shortest pause again."""
        self._pause = self._first_pause

    def check(self) -> Listing | None:
        """Return what the driver lists, None while a pause runs. Raises NvmlError."""
        if self._wanted.is_set():
            if time.monotonic() < self._not_before:
                return None
            self._attach()
        try:
            return Listing(self._nvml.count(), self._driver)
        except NvmlError as error:
            if error.name not in BROKEN:
                raise
            self._wanted.set()
            if time.monotonic() < self._not_before:
                raise
        self._attach()
        return Listing(self._nvml.count(), self._driver)

    def _attach(self) -> None:
        idle = self._gate.close(1.0)
        # With a call out, detaching could hang behind it; attaching only counts up what a detach counts down.
        if self._was_attached and idle:
            with contextlib.suppress(NvmlError):  # already detached, which is what was wanted
                self._nvml.shutdown()
        try:
            self._nvml.init()
            self._was_attached = True
            self._driver = ""
            with contextlib.suppress(NvmlError):  # an ornament; what is broken breaks the next call too
                self._driver = self._nvml.driver_version()
        finally:
            self._not_before = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        self._wanted.clear()
        self._attached()
        self._gate.open()
