"""The source ``log``: readings from the lines an engine writes."""

from __future__ import annotations

import logging
import threading
import time

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts.files import unreadable
from k3observe.exporters.experts.follow import Follower
from k3observe.exporters.experts.follow_pattern import PatternFollower
from k3observe.exporters.experts.formats import LineReader, Problem
from k3observe.exporters.experts.source import Sink


class LogSource:
    """Follows the log at ``path`` and hands over what ``reader`` makes of its lines.

    ``-`` is standard input; a path with ``*`` is every file that matches.
    """

    name = "log"
    reasons = ("unreadable", "long_line", "eplb_crashed")

    def __init__(self, path: str, reader: LineReader, *, from_start: bool = False) -> None:
        self._path, self._reader = path, reader
        follow = PatternFollower if "*" in path else Follower
        self._follower: Follower | PatternFollower = follow(path, self._block, from_start=from_start)
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._missing = False
        self._next_note = 0.0
        self._long_lines = 0

    def start(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        """Start following in a daemon thread."""
        self._sink, self._status, self._log = sink, status, log
        threading.Thread(
            target=self._follower.run, args=(self._stop, self._looked), name="experts-log", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def _looked(self, error: OSError | None) -> None:
        for _ in range(self._follower.long_lines - self._long_lines):
            self._long_lines += 1
            self._status.failed("long_line", down=False)
        if error is None:
            now = time.monotonic()
            if self._missing or now >= self._next_note:
                self._missing, self._next_note = False, now + 1
                self._status.succeeded()
        elif not self._missing:
            self._missing = True
            self._status.failed("unreadable")
            self._log.warning("%s; it is tried again", unreadable(error, self._path))

    def _block(self, block: bytes) -> None:
        try:
            for event in self._reader.read_block(block, time.time()):
                if isinstance(event, Problem):
                    self._problem(event)
                else:
                    self._sink(event)
        except Exception:  # the thread must live on
            self._status.failed("unreadable", down=False)
            self._log.exception("lines of the log %s are left out", self._path)

    def _problem(self, problem: Problem) -> None:
        if problem.reason:
            self._status.failed(problem.reason, down=False)
        if not problem.once or problem.text not in self._said:
            self._log.warning("%s", problem.text)
        if problem.once:
            self._said.add(problem.text)
