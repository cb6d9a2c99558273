"""Critical XID events, heard by one event set in a thread of its own.

A card's events come only after its registration, which the card's own thread does, so that a hanging card does not
keep others from being heard. An attachment or a failed wait starts a new set, in which the cards register again with
their next reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from k3observe.exporters.gpu.lane import Gate
from k3observe.exporters.gpu.nvml import Nvml, NvmlError, handle_key
from k3observe.exporters.gpu.reading import FATAL, PROPERTIES

WAIT_MILLISECONDS = 500


class _Events:
    """An event set, the cards in it, and how many threads use it: it is freed by the last."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.uuids: dict[int, str] = {}
        self.users = 1
        self.lock = threading.Lock()


class XidWatch:
    """``watching(uuid)`` is called when a card's events are listened to, ``heard(uuid, xid)`` at each event.

    ``failed(error, news)`` is called when listening fails; ``news`` is false while it fails as it did before.
    """

    def __init__(
        self, nvml: Nvml, gate: Gate, pause: float, watching: Callable[[str], None],
        heard: Callable[[str, int], None], failed: Callable[[str, bool], None],
    ) -> None:
        self._nvml, self._gate, self._pause = nvml, gate, pause
        self._watching, self._heard, self._failed = watching, heard, failed
        self._problem: str | None = None
        self._events: _Events | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-xid", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread within its wait."""
        self._stop.set()

    def attached(self) -> None:
        """Start anew after an attachment; the sets of the last one are gone with it."""
        with self._lock:
            self._events = None
        self._renew()

    def watch(self, handle: Any, uuid: str) -> None:
        """Register a card, once a set. Raises NvmlError where the card itself is in trouble."""
        with self._lock:
            events = self._events
            if events is None or uuid in events.uuids.values():
                return
            with events.lock:
                events.users += 1
        key = handle_key(handle)
        events.uuids[key] = uuid  # before the registration: its first event may come at once
        try:
            self._nvml.register_xid(handle, events.handle)
            self._watching(uuid)
        except NvmlError as error:
            del events.uuids[key]
            if error.name in FATAL:
                raise
            if error.name in PROPERTIES or error.name == "no_permission":
                events.uuids[-len(events.uuids) - 1] = uuid  # has no events: do not ask again
        finally:
            self._release(events)

    def _renew(self) -> None:
        try:
            events = _Events(self._nvml.event_set())
        except NvmlError as error:
            if error.name not in PROPERTIES:
                self._fail(error.name)
            return
        with self._lock:
            self._events = events

    def _release(self, events: _Events) -> None:
        with events.lock:
            events.users -= 1
            last = events.users == 0
        if last:
            try:
                self._nvml.free_event_set(events.handle)
            except NvmlError as error:
                self._fail(error.name)

    def _fail(self, error: str) -> None:
        self._failed(error, error != self._problem)
        self._problem = error

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._gate.enter(1):
                continue
            try:
                healthy = self._listen()
            finally:
                self._gate.leave()
            if not healthy:
                self._stop.wait(self._pause)

    def _listen(self) -> bool:
        """Wait once; return whether the next wait may follow at once."""
        events = self._events
        if events is None:
            self._renew()
            return self._events is not None
        try:
            key, xid = self._nvml.wait_xid(events.handle, WAIT_MILLISECONDS)
        except NvmlError as error:
            if error.name == "timeout":
                self._problem = None
                return True
            if error.name not in PROPERTIES:
                self._fail(error.name)
            with self._lock:
                mine = self._events is events
                if mine:
                    self._events = None
            if mine:
                self._release(events)
            return False
        uuid = events.uuids.get(key)
        if uuid is None:
            self._fail("unknown_card")
        else:
            self._heard(uuid, xid)
        return True
