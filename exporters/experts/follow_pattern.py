"""Following all files that a pattern matches: engines of several processes write one log each."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable
from threading import Event

from k3observe.exporters.experts.follow import Emit, Follower

MAX_FILES = 64
LOOK_SECONDS = 1.0


class PatternFollower:
    """Passes what is appended to the files that match ``pattern`` (``/logs/*.log``) to ``emit``, a block at a time.

    Files that appear later are read from their start. Only the 64 that were written last are followed, as those of
    processes that ended stay in the directory.
    """

    def __init__(self, pattern: str, emit: Emit, *, from_start: bool = False) -> None:
        self._pattern, self._emit, self._from_start = pattern, emit, from_start
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Follower, Event]] = {}
        self._ended_long_lines = 0

    @property
    def long_lines(self) -> int:
        """Lines passed over as too long."""
        return self._ended_long_lines + sum(follower.long_lines for follower, _ in self._followed.values())

    def run(self, stop: Event, looked: Callable[[OSError | None], None]) -> None:
        """Follow until ``stop``; ``looked`` hears each second whether there is a file."""
        try:
            while not stop.is_set():
                paths = self._newest()
                for path in self._followed.keys() - set(paths):
                    self._end(path)
                for path in paths:
                    if path not in self._followed:
                        self._begin(path)
                self._from_start = True
                looked(None if paths else FileNotFoundError(f"no file matches {self._pattern} yet"))
                stop.wait(LOOK_SECONDS)
        finally:
            for path in list(self._followed):
                self._end(path)

    def _newest(self) -> list[str]:
        found = []
        for path in glob.iglob(self._pattern):
            try:
                found.append((os.stat(path).st_mtime, path))
            except OSError:
                continue
        return [path for _, path in sorted(found)[-MAX_FILES:]]

    def _begin(self, path: str) -> None:
        ended = Event()
        follower = Follower(path, self._block, from_start=self._from_start, poll_seconds=LOOK_SECONDS)
        self._followed[path] = (follower, ended)
        threading.Thread(
            target=follower.run, args=(ended, lambda error: None), name="experts-log-file", daemon=True).start()

    def _end(self, path: str) -> None:
        follower, ended = self._followed.pop(path)
        ended.set()
        self._ended_long_lines += follower.long_lines

    def _block(self, lines: bytes) -> None:
        with self._lock:
            self._emit(lines)
