"""Following all files that a pattern matches: engines of several processes write one log each."""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable
from threading import Event

from k3observe.exporters.experts.files import UnreadableError
from k3observe.exporters.experts.follow import GENERATION, Emit, Follower

MAX_FILES = 64
_GENERATION = re.compile(rf"(.+?){GENERATION}(?:\.(?:gz|bz2|xz|zst))?", re.DOTALL)
"""The name of a rotated file, and that of its log."""
LOOK_SECONDS = 1.0


_Inode = tuple[int, int]


class PatternFollower:
    """Passes what is appended to the files that match ``pattern`` (``/logs/*.log``) to ``emit``, a block at a time.

    Files that appear later are read from their start, but not what was read before: rotated generations of a file
    that matches, a file followed under another name, one that returns. Only the 64 that were written last are followed,
    as those of processes that ended stay in the directory.
    """

    def __init__(self, pattern: str, emit: Emit, *, from_start: bool = False) -> None:
        self._pattern, self._emit, self._from_start = pattern, emit, from_start
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Follower, Event]] = {}
        self._known: dict[_Inode, str] = {}
        self._old: frozenset[_Inode] = frozenset()
        self._ended_long_lines = 0

    @property
    def long_lines(self) -> int:
        """Lines passed over as too long."""
        return self._ended_long_lines + sum(follower.long_lines for follower, _ in self._followed.values())

    def run(self, stop: Event, looked: Callable[[OSError | None], None]) -> None:
        """Follow until ``stop``; ``looked`` hears each second whether there is a file."""
        try:
            while not stop.is_set():
                looked(self._look())
                stop.wait(LOOK_SECONDS)
        finally:
            for path in list(self._followed):
                self._end(path)

    def _look(self) -> OSError | None:
        files = self._newest()
        for path in self._followed.keys() - files.keys():
            self._end(path)
        for path, inode in files.items():
            before = self._known.setdefault(inode, path)
            if path in self._followed or (before != path and before in self._followed):
                continue
            try:
                self._begin(path, from_start=self._from_start and inode not in self._old)
            except RuntimeError as error:
                return UnreadableError(f"{path}: cannot be followed: {error}: raise the limit of threads")
        self._from_start = True
        return None if files else UnreadableError(
            f"{self._pattern}: no file matches yet: check the pattern, and that the folder is mounted in a container")

    def _newest(self) -> dict[str, _Inode]:
        found = {}
        for path in glob.iglob(self._pattern):
            try:
                found[path] = os.stat(path)
            except OSError:
                continue
        inodes = {path: (status.st_dev, status.st_ino) for path, status in found.items()}
        there = set(inodes.values())
        # An inode that is gone may come again as another file.
        self._known = {inode: path for inode, path in self._known.items() if inode in there}
        self._old = frozenset(self._known)
        logs = [path for path in found if not ((match := _GENERATION.fullmatch(path)) and match[1] in found)]
        return {path: inodes[path] for path in sorted(logs, key=lambda path: found[path].st_mtime)[-MAX_FILES:]}

    def _begin(self, path: str, *, from_start: bool) -> None:
        ended = Event()
        follower = Follower(path, self._block, from_start=from_start, poll_seconds=LOOK_SECONDS)
        threading.Thread(
            target=follower.run, args=(ended, lambda error: None), name="experts-log-file", daemon=True).start()
        self._followed[path] = (follower, ended)

    def _end(self, path: str) -> None:
        follower, ended = self._followed.pop(path)
        ended.set()
        self._ended_long_lines += follower.long_lines

    def _block(self, lines: bytes) -> None:
        with self._lock:
            self._emit(lines)
