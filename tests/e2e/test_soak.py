"""A minute of the soak; an hour is run by hand: ``python bench/soak.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.drill.binaries import PROJECT


@pytest.mark.long
def test_a_minute_of_faults_leaves_sidecars_with_right_values_and_no_more_memory_threads_or_processes(
    c_compiler: Path,
) -> None:
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, PROJECT / "bench/soak.py", "--seconds", "60"], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
