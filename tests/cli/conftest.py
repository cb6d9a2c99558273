from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SMALLEST = """\
version: 1
stack: kimi-k3
services:
  - name: kimi-k3
    engine: {name: vllm, version: "0.33"}
    targets: ["10.0.0.1:8000", "10.0.0.2:8000"]
"""


@pytest.fixture
def k3observe(tmp_path: Path) -> Run:
    """The real command in an empty folder; whatever it is given, it shows no traceback."""

    def run(
        *arguments: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "k3observe", *arguments], cwd=tmp_path, check=False, capture_output=True,
            input=stdin.encode() if isinstance(stdin, str) else stdin, env={**os.environ, **(env or {})},
        )  # fmt: skip
        text = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        assert "Traceback" not in text.stderr, text.stderr
        return text

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The smallest useful configuration, where the commands look for it."""
    path = tmp_path / "k3observe.yaml"
    path.write_text(SMALLEST)
    return path
