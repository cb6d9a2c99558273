"""Prometheus' and Alertmanager's own programs, run over a bundle."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from k3observe.config.errors import ConfigError, Problem
from k3observe.drill.binaries import BinaryMissingError, find


def promtool(*arguments: str, folder: Path | None = None) -> tuple[bool, str]:
    """Run promtool; return whether it was content, and what it said."""
    return _run("promtool", arguments, folder)


def amtool(*arguments: str) -> tuple[bool, str]:
    """Run amtool; return whether it was content, and what it said."""
    return _run("amtool", arguments, None)


class Tested(NamedTuple):
    """A file of unit tests, whether it passed, and what promtool said."""

    file: Path
    passed: bool
    said: str


def run_tests(files: Sequence[Path]) -> Iterator[Tested]:
    """Run promtool's unit tests of rules, a process a file and as many at once as there are cores, in order.

    Whoever stops to iterate, by an interrupt say, ends those that run.
    """
    path, running = _path("promtool"), _Running()

    def run(file: Path) -> Tested:
        return Tested(file, *running.run([str(path), "test", "rules", str(file)]))

    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        yield from pool.map(run, files)
    finally:
        running.end()
        pool.shutdown(cancel_futures=True)


class _Running:
    """Processes that are ended together; after that none is started."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), False
        self._processes: set[subprocess.Popen[str]] = set()

    def run(self, command: Sequence[str]) -> tuple[bool, str]:
        """Run a command to its end; return whether that was a good one, and what it said."""
        with self._lock:
            if self._ended:
                return False, ""
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", env=_MEMORY | os.environ)  # fmt: skip
            self._processes.add(process)
        said, _ = process.communicate()
        with self._lock:
            self._processes.discard(process)
        return process.returncode == 0, said.strip()

    def end(self) -> None:
        """Kill what runs."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.kill()


_MEMORY = {"GOGC": "400"}
"""A quarter of the time of a test is garbage collection, of a few dozen MB."""


@cache
def program(name: str) -> Path:
    """Where a program is: a current one, else one as old as our output allows; BinaryMissingError says what to do."""
    try:
        return find(name, "3.5").path
    except BinaryMissingError as missing:
        try:
            return find(name, "2.42").path
        except BinaryMissingError:
            raise missing from None


def _path(name: str) -> Path:
    try:
        return program(name)
    except BinaryMissingError as error:
        raise ConfigError([Problem(str(error), file=name)]) from None


def _run(name: str, arguments: Sequence[str], folder: Path | None) -> tuple[bool, str]:
    done = subprocess.run(
        [str(_path(name)), *arguments], capture_output=True, text=True, errors="replace", cwd=folder, check=False
    )
    return done.returncode == 0, (done.stdout + done.stderr).strip()
