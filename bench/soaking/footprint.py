"""What processes hold over time, and those that are left over."""

from __future__ import annotations

import os
import re
import statistics
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Footprint:
    """What a process holds over time."""

    pid: int
    memory: list[float] = field(default_factory=list)

    def sample(self) -> None:
        self.memory.append(self._status(r"VmRSS:\s+(\d+)") / 1024)

    @property
    def threads(self) -> int:
        return self._status(r"Threads:\s+(\d+)")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def drift(self) -> float:
        """MiB from the second quarter of the samples to the last: the first fills caches and windows."""
        quarter = len(self.memory) // 4
        return statistics.median(self.memory[-quarter:]) - statistics.median(self.memory[quarter : 2 * quarter])

    def _status(self, pattern: str) -> int:
        return int(re.findall(pattern, Path(f"/proc/{self.pid}/status").read_text())[0])


def strays(program: Path) -> list[int]:
    """Processes of the simulated npu-smi; a sidecar, which has its path as a flag, is none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if str(program).encode() in (entry / "cmdline").read_bytes().split(b"\0")[:2]:
                    found.append(int(entry.name))
    return found
