"""A sidecar whose devices, tools and engine all hang still ends at once, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from k3observe.drill import stack
from k3observe.drill.devices import npu_smi, nvml
from k3observe.drill.replay import load, serve


def users(program: Path) -> list[int]:
    """Processes that run this program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if stat[0] != "Z" and str(program).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def wait_until_none(program: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := users(program):
        assert time.monotonic() < deadline, f"{left} still run {program}"
        time.sleep(0.05)


@contextmanager
def sidecar(folder: Path, npu: Path, engine: str) -> Iterator[subprocess.Popen[str]]:
    """Every collector at once, in a process of its own."""
    published = folder / "published"
    published.mkdir()
    state = folder / "nvml.conf"
    nvml.write(state, {"cards": "0 1", "gpu.0.sleep": 3_600_000})
    library = nvml.build(folder / "nvml")
    command = [
        sys.executable, "-m", "k3observe.exporters.main", "--collect", "gpu,npu,kv-cache,experts",
        "--gpu.interval", "0.2", "--gpu.timeout", "1", "--npu.smi-path", str(npu), "--npu.interval", "0.2",
        "--npu.timeout", "30", "--kv-cache.url", engine, "--kv-cache.interval", "0.2",
        "--experts.source", "plugin", "--experts.plugin-dir", str(published),
        "--web.listen-address", "127.0.0.1:0",
    ]  # fmt: skip
    environment = {**os.environ, **nvml.environment(library.parent, state)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            while line := process.stderr.readline():
                if re.search("listening on", line):
                    break
            yield process
        finally:
            process.kill()
            process.stderr.close()
            for pid in users(npu):  # of a test that failed
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["hang", "orphan"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_sidecar_among_hanging_devices_ends_and_leaves_no_process(
    number: signal.Signals, kind: str, c_compiler: Path, tmp_path: Path
) -> None:
    npu = npu_smi.install(tmp_path, npu_smi.cards("910", 2) | {"fault": {"kind": kind}})
    with serve(load(stack.ENGINES / "vllm-0.33.prom")) as engine:
        engine.inject("hang")
        with sidecar(tmp_path, npu, engine.url) as process:
            deadline = time.monotonic() + 10
            while not users(npu):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(10) == 0
            wait_until_none(npu, 5)
