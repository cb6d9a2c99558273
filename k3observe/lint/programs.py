"""Prometheus' and Alertmanager's own programs, run over a bundle."""

from __future__ import annotations

import os
import subprocess
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
    """Run promtool's unit tests of rules, a process a file and as many at once as there are cores, in order."""

    def run(file: Path) -> Tested:
        return Tested(file, *promtool("test", "rules", str(file)))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(run, files)


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


def _run(name: str, arguments: Sequence[str], folder: Path | None) -> tuple[bool, str]:
    try:
        path = program(name)
    except BinaryMissingError as error:
        raise ConfigError([Problem(str(error), file=name)]) from None
    done = subprocess.run(
        [str(path), *arguments], capture_output=True, text=True, errors="replace", cwd=folder, check=False
    )
    return done.returncode == 0, (done.stdout + done.stderr).strip()
