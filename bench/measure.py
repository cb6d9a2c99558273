"""Measures two things interleaved in one run, so that a noisy machine disturbs both alike; the goal is their ratio."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROUNDS = 9

COMPILED = {
    **os.environ, "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(__file__).resolve().parent.parent / ".cache" / "bench" / "pycache")}
"""Environment of an installed program: its modules are compiled (by the warm-up), whatever the shell says."""


class Pair(NamedTuple):
    """Medians of the subject and of what it is held against."""

    subject: float
    reference: float

    @property
    def ratio(self) -> float:
        """Subject over reference."""
        return self.subject / self.reference


def interleaved(subject: Callable[[], float], reference: Callable[[], float], rounds: int = ROUNDS) -> Pair:
    """Run both in turns after one warm-up each; each returns its own cost."""
    subject(), reference()
    pairs = [(subject(), reference()) for _ in range(rounds)]
    return Pair(statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))


def cpu_seconds(work: Callable[[], object], repeat: int = 1) -> Callable[[], float]:
    """Return a function that does the work ``repeat`` times and returns the CPU seconds of one."""

    def measure() -> float:
        gc.collect()
        start = time.process_time()
        for _ in range(repeat):
            work()
        return (time.process_time() - start) / repeat

    return measure


def process_cpu_seconds(command: Sequence[str], env: dict[str, str] | None = None) -> Callable[[], float]:
    """Return a function that runs a command to its end and returns its CPU seconds; ``env`` adds to COMPILED."""

    def measure() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**COMPILED, **(env or {})})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return measure


def lax_factor() -> float:
    """The factor CI loosens goals by, from K3OBSERVE_BENCH_LAX; 1 by default."""
    return float(os.environ.get("K3OBSERVE_BENCH_LAX", "1"))


def report(goal: str, subject: str, reference: str, pair: Pair, unit: str, *, at_most: float) -> bool:
    """Print one line and return whether the ratio is at most the goal (times the lax factor)."""
    met = pair.ratio <= at_most * lax_factor()
    scale = {"ms": 1e3, "us": 1e6, "MiB": 1 / 2**20}.get(unit, 1.0)
    print(
        f"{'ok  ' if met else 'MISS'} {goal}: {subject} {pair.subject * scale:.3f} {unit}, "
        f"{reference} {pair.reference * scale:.3f} {unit}, ratio {pair.ratio:.4g} (at most {at_most:g})")
    return met


def leave(results: Sequence[bool]) -> None:
    """Exit with 1 when a goal was missed."""
    sys.exit(0 if all(results) else 1)
