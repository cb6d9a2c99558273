"""Following a log that grows, rotates, or comes through a pipe, in blocks of whole lines."""

from __future__ import annotations

import os
import re
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from k3observe.exporters.experts.files import UnreadableError

CHUNK = 1 << 16
"""Small enough that it stays in the processor's cache while markers are searched, and is not mapped anew each time."""
MAX_LINE = 1 << 16
HEAD = 64
LINGER_SECONDS = 10.0
MAX_TAILS = 64
CATCH_UP_SECONDS = 1.0
GENERATION = r"[.-]\d[\d.:_T-]*"
"""What rotation appends to a name: a number or a date. Other files beside the log are none of its generations."""
_ROTATED = re.compile(GENERATION)

Emit = Callable[[bytes], None]


class _Tail:
    """One open file, read to its end again and again; a line without its newline waits for the rest."""

    def __init__(self, descriptor: int, *, at_end: bool) -> None:
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.inode = (status.st_dev, status.st_ino)
        self.regular = stat.S_ISREG(status.st_mode)
        self.quiet_since = time.monotonic()
        self.long_lines = 0
        self._position = os.lseek(descriptor, 0, os.SEEK_END) if self.regular and at_end else 0
        self._head = os.pread(descriptor, HEAD, 0) if self.regular else b""
        self._rest = b""
        self._skipping = False

    def read(self, emit: Emit, stop: Event) -> bool | None:
        """Pass on the whole lines that are there; return whether there was anything, None at the end of a pipe."""
        if self.regular:
            self._restart_if_truncated()
        found: bool | None = False
        while not stop.is_set():
            try:
                chunk = os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                return found
            if not chunk:
                if not self.regular:
                    self._rest, self._skipping = b"", False  # a line that its writer did not end
                return found if self.regular or found else None
            found = True
            if len(chunk) == CHUNK and self.regular and not chunk.strip(b"\0"):
                self._skip_hole()
                continue
            self._position += len(chunk)
            self.quiet_since = time.monotonic()
            self._pass_on(chunk, emit)
            if not self.regular:
                return found
        return found

    def _skip_hole(self) -> None:
        """Go to the next data: a file emptied in place under a writer that does not append begins with a hole."""
        here, size = os.lseek(self.descriptor, 0, os.SEEK_CUR), os.fstat(self.descriptor).st_size
        try:
            self._position = os.lseek(self.descriptor, here, os.SEEK_DATA)
        except OSError:  # no data behind it
            self._position = os.lseek(self.descriptor, max(here, size), os.SEEK_SET)
        self._rest, self._skipping = b"", False

    def _restart_if_truncated(self) -> None:
        """Begin anew in a file emptied in place: smaller than what was read, or grown again from another beginning."""
        size = os.fstat(self.descriptor).st_size
        if size == self._position:
            return
        head = os.pread(self.descriptor, HEAD, 0)
        if size < self._position or not head.startswith(self._head):
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            self._position, self._rest, self._skipping = 0, b"", False
        self._head = head

    def _pass_on(self, chunk: bytes, emit: Emit) -> None:
        end = chunk.rfind(b"\n") + 1
        if not end:
            if not self._skipping:
                self._keep(self._rest + chunk)
            return
        start = chunk.find(b"\n") + 1 if self._skipping else 0
        self._skipping = False
        lines = b"".join((self._rest, memoryview(chunk)[start:end]))
        self._keep(chunk[end:])
        if lines:
            emit(lines)

    def _keep(self, rest: bytes) -> None:
        """Keep the beginning of a line; one that is too long is passed over up to its newline."""
        self._rest = rest
        if len(rest) > MAX_LINE:
            self._rest, self._skipping = b"", True
            self.long_lines += 1

    def close(self) -> None:
        os.close(self.descriptor)


class Follower:
    """Passes what is appended to ``path`` (``-``: standard input) to ``emit`` in blocks of whole lines.

    A file is followed by name. After a rename the old file is read on until it has been quiet for ten seconds, as its
    writer may open the new one late; further generations that came and went between two looks are read as well. A
    file that appears later is read from its start, one that is there from its end (``from_start=False``). Lines
    longer than 64 KiB are passed over and counted. A file emptied in place loses what was written between the copy and
    the emptying: nobody can read that.
    """

    def __init__(self, path: str, emit: Emit, *, from_start: bool = False, poll_seconds: float = 0.2) -> None:
        self._path, self._emit, self._poll = path, emit, poll_seconds
        self._at_end = not from_start
        self._current: _Tail | None = None
        self._old: list[_Tail] = []
        self._before: set[tuple[int, int]] = set()
        self._last_look = self._written_since = time.time()
        self._catch_up_until = 0.0
        self._long_lines = 0

    @property
    def long_lines(self) -> int:
        """Lines passed over as too long."""
        tails = [self._current, *self._old] if self._current else self._old
        return self._long_lines + sum(tail.long_lines for tail in tails)

    def run(self, stop: Event, looked: Callable[[OSError | None], None]) -> None:
        """Follow until ``stop``, or to the end of standard input; ``looked`` hears how each look went."""
        try:
            while not stop.is_set():
                try:
                    progress = self._look(stop)
                except OSError as error:
                    looked(error)
                    progress = False
                else:
                    looked(None)
                if progress is None and self._path == "-":
                    looked(UnreadableError("standard input has ended: start the sidecar anew with the engine"))
                    return
                if not progress:
                    self._wait(stop, ended=progress is None)
        finally:
            for tail in [self._current, *self._old]:
                if tail is not None:
                    tail.close()

    def _look(self, stop: Event) -> bool | None:
        if self._current is None:
            try:
                self._current = self._open(at_end=self._at_end)
            except FileNotFoundError:
                self._at_end = False
                raise
            self._before = {inode for inode, _, _ in self._generations()}
        if self._path == "-":
            # Not set to non-blocking: others may share the descriptor's file.
            readable, _, _ = select.select([self._current.descriptor], [], [], self._poll)
            return self._current.read(self._emit, stop) if readable else True
        began = time.time()
        progress = self._current.read(self._emit, stop)
        for tail in self._old:
            progress = bool(tail.read(self._emit, stop)) or progress
        if self._rotated():
            progress = True
            if began > self._catch_up_until:
                self._written_since = self._last_look - CATCH_UP_SECONDS
            self._catch_up_until = began + CATCH_UP_SECONDS
        if began <= self._catch_up_until:
            self._catch_up(stop)
        for tail in list(self._old):
            if time.monotonic() - tail.quiet_since > LINGER_SECONDS or len(self._old) > MAX_TAILS:
                self._retire(tail)
        self._last_look = began
        return progress

    def _open(self, *, at_end: bool) -> _Tail:
        if self._path == "-":
            if stat.S_ISDIR(os.fstat(0).st_mode):
                raise UnreadableError("standard input is a directory: connect the engine's output to it")
            return _Tail(os.dup(0), at_end=False)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            os.close(descriptor)
            raise UnreadableError(f"{self._path}: is neither a file nor a pipe: name the log itself")
        return _Tail(descriptor, at_end=at_end)

    def _rotated(self) -> bool:
        """Turn to the file that now has the name, if it is another one."""
        assert self._current is not None
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            if time.monotonic() - self._current.quiet_since > LINGER_SECONDS:
                raise
            return False  # renamed, and the new one is not there yet
        if (status.st_dev, status.st_ino) == self._current.inode:
            return False
        new = self._open(at_end=False)
        self._old.append(self._current)
        self._current = new
        return True

    def _catch_up(self, stop: Event) -> None:
        """Read generations that had the name only between two looks: written since then, and not opened yet.

        This is repeated for a moment, as files may be renamed once more while they are listed.
        """
        opened = {tail.inode for tail in [self._current, *self._old] if tail is not None}
        for inode, modified, name in self._generations():
            if inode in opened or inode in self._before or modified < self._written_since:
                continue
            try:
                tail = _Tail(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), at_end=False)
            except FileNotFoundError:
                continue
            if tail.inode != inode:
                tail.close()
                continue
            self._old.append(tail)
            tail.read(self._emit, stop)

    def _generations(self) -> list[tuple[tuple[int, int], float, str]]:
        """Return inode, time of change and path of the rotated files beside the log, oldest first."""
        path = Path(self._path)
        found = []
        try:
            with os.scandir(path.parent) as entries:
                for entry in entries:
                    if entry.name.startswith(path.name) and _ROTATED.fullmatch(entry.name, len(path.name)):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            found.append((status.st_mtime, (status.st_dev, status.st_ino), entry.path))
        except OSError:
            return []
        return [(inode, modified, name) for modified, inode, name in sorted(found)]

    def _retire(self, tail: _Tail) -> None:
        self._old.remove(tail)
        self._long_lines += tail.long_lines
        tail.close()

    def _wait(self, stop: Event, *, ended: bool) -> None:
        """Wait for more: a pipe with a writer wakes at once, so that a full one does not hold the engine up."""
        if self._current is not None and not self._current.regular and not ended:
            select.select([self._current.descriptor], [], [], self._poll)
        else:
            stop.wait(self._poll)
