"""Reading the directory of the engine's plugin: what is new, who is alive, and what is damaged."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from k3observe.exporters.experts.files import unreadable, why
from k3observe.exporters.vllm_plugin import fileformat
from k3observe.exporters.vllm_plugin.fileformat import FormatError, Publication

MAX_ENTRIES = 4096
MAX_FILES = 1024
MAX_TOTAL_BYTES = 256 << 20
"""Of all files together; 16 ranks of 92 layers x 896 experts have 18 MiB."""
DEAD_SECONDS = 4 * fileformat.HEARTBEAT_SECONDS
"""A writer touches its file every heartbeat; one that missed four is dead."""

_MISSING = "let the engine's K3OBSERVE_EXPERTS_DIR name it, and share it between engine and sidecar"
Place = tuple[str, int, int]
"""Instance, pipeline rank and expert-parallel rank."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at the directory gave: new publications, the places of living ranks, and what is wrong."""

    files: int
    publications: tuple[Publication, ...]
    alive: frozenset[Place]
    problems: tuple[str, ...]


class Directory:
    """Remembers which version of each file it has read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, tuple[int, int, int]] = {}
        self._problems: dict[str, str] = {}

    def read(self, now: float) -> Found:
        """Read the files that changed. Raises UnreadableError where the directory cannot be read."""
        publications: list[Publication] = []
        alive: set[Place] = set()
        seen: dict[str, tuple[int, int, int]] = {}
        notes: list[str] = []
        left = MAX_TOTAL_BYTES
        for name in self._names(notes):
            place = fileformat.parse_name(name)
            if place is None:
                continue
            try:
                status = os.stat(self._path / name, follow_symlinks=False)
            except OSError:
                continue  # removed since it was listed
            left -= status.st_size
            if left < 0:
                notes.append(f"{self._path}: more than {MAX_TOTAL_BYTES} bytes in all: "
                             f"{name} and those after it are not read")
                break
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
            if abs(now - status.st_mtime) <= DEAD_SECONDS:
                alive.add(place)
            seen[name] = version
            if self._read.get(name) == version:
                continue
            self._problems.pop(name, None)
            try:
                publication = self._file(name)
                if (publication.instance, publication.pp_rank, publication.ep_rank) != place:
                    raise FormatError("the name is not that of the rank in it")
                if publication.time > now + DEAD_SECONDS:
                    raise FormatError("its time lies in the future")
                publications.append(publication)
            except (OSError, FormatError) as error:
                self._problems[name] = why(error) if isinstance(error, OSError) else str(error)
        self._read = seen
        self._problems = {name: text for name, text in self._problems.items() if name in seen}
        bad = [f"{self._path / name}: {text}" for name, text in self._problems.items()]
        living = frozenset(place for place in alive if fileformat.file_name(*place) not in self._problems)
        return Found(len(seen), tuple(publications), living, (*notes, *bad))

    def _names(self, notes: list[str]) -> list[str]:
        names: list[str] = []
        try:
            listing = os.scandir(self._path)
        except OSError as error:
            raise unreadable(error, self._path, _MISSING) from None
        with listing as entries:
            for index, entry in enumerate(entries):
                if index >= MAX_ENTRIES or len(names) >= MAX_FILES:
                    notes.append(f"{self._path}: more than {MAX_FILES} files, or {MAX_ENTRIES} entries, are not read")
                    break
                if fileformat.parse_name(entry.name):
                    names.append(entry.name)
        return sorted(names)

    def _file(self, name: str) -> Publication:
        descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FormatError("not a regular file")
            if status.st_size > fileformat.MAX_BYTES:
                raise FormatError(f"{status.st_size} bytes: at most {fileformat.MAX_BYTES} are read")
            return fileformat.decode(file.read(fileformat.MAX_BYTES + 1))
