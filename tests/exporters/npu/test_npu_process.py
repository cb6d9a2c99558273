"""The whole process ``k3observe-exporter --collect npu`` on the simulated tool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from k3observe.drill.devices import npu_smi
from tests.exporters.exporter_process import PROGRAM, Exporter, is_gone, wait_until

Run = Callable[..., Exporter]


def flags(program: Path) -> tuple[str, ...]:
    return "--collect=npu", f"--npu.smi-path={program}", "--npu.interval=0.2"


def wait_for(exporter: Exporter, line: str) -> str:
    found: list[str] = []

    def look() -> bool:
        found.append(exporter.get("/metrics")[2].decode())
        return line in found[-1]

    wait_until(look)
    return found[-1]


def children_of(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def test_a_scrape_of_an_a3_is_clean_for_promtool(run_exporter: Run, tmp_path: Path, promtool: Path) -> None:
    state = npu_smi.cards("A3", 8)
    state["npus"][2]["chips"][1] |= {"health": "Alarm", "codes": ["0x80E01801"], "ecc": [3, 1]}
    exporter = run_exporter(*flags(npu_smi.install(tmp_path, state)), "--npu.expected=16")
    device = 'uuid="0000:86:00.0",vendor="ascend"'
    body = wait_for(exporter, f'k3_accelerator_fault{{code="0x80E01801",device="2-1",{device}}} 1.0')
    assert 'k3_accelerators_expected{vendor="ascend"} 16.0' in body
    assert 'k3_accelerators_visible{vendor="ascend"} 16.0' in body
    assert "_created" not in body
    body = wait_for(exporter, f'k3_accelerator_ecc_errors_total{{device="2-1",type="uncorrected",{device}}} 1.0')
    subprocess.run([promtool, "check", "metrics"], input=body, text=True, check=True)


def test_a_hung_tool_and_its_children_end_with_an_exporter_that_is_killed(run_exporter: Run, tmp_path: Path) -> None:
    tool, pids = tmp_path / "npu-smi", tmp_path / "pids"
    tool.write_text(f"#!/bin/sh\ntrap '' TERM HUP INT\nsleep 300 &\necho $$ $! >> '{pids}'\nwhile :; do wait; done\n")
    tool.chmod(0o755)
    process = run_exporter(*flags(tool), "--npu.timeout=300").process
    wait_until(lambda: pids.exists() and pids.read_text())
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    assert not any(map(is_gone, started))
    process.send_signal(signal.SIGKILL)
    process.wait(2)
    wait_until(lambda: all(map(is_gone, started)), 2)


def test_a_hung_tool_delays_neither_scrape_nor_health_nor_the_end(run_exporter: Run, tmp_path: Path) -> None:
    state = npu_smi.cards("910", 8) | {"fault": {"kind": "hang"}}
    exporter = run_exporter(*flags(npu_smi.install(tmp_path, state)), "--npu.timeout=300")
    wait_until(lambda: children_of(exporter.process.pid))
    tools = children_of(exporter.process.pid)
    for path in ("/metrics", "/-/healthy"):
        started = time.monotonic()
        assert exporter.get(path)[0] == 200
        assert time.monotonic() - started < 0.5
    exporter.process.send_signal(signal.SIGTERM)
    assert exporter.process.wait(1.0) == 0
    time.sleep(0.1)
    assert all(map(is_gone, tools))


def test_once_prints_the_table_and_what_it_lacks(tmp_path: Path) -> None:
    program = npu_smi.install(tmp_path, npu_smi.cards("310P", 2))
    done = subprocess.run(
        [*PROGRAM, "--collect=npu", "--once"], env={**os.environ, "K3OBSERVE_NPU_SMI_PATH": str(program)},
        capture_output=True, text=True, timeout=30, check=True)
    assert 'k3_accelerator_power_watts{device="1-0",uuid="0000:83:00.0",vendor="ascend"} 45.2' in done.stdout
    assert 'k3_accelerator_ecc_errors_total{device="1-1"' in done.stdout


def test_signals_that_the_parent_ignores_or_blocks_cost_no_reading_and_no_end(
    run_exporter: Run, tmp_path: Path
) -> None:
    program = npu_smi.install(tmp_path, npu_smi.cards("910", 2))
    code = ("import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nos.execv(sys.argv[1], sys.argv[1:])\n")
    exporter = run_exporter(*flags(program), program=(sys.executable, "-c", code, *PROGRAM))
    wait_for(exporter, 'k3_accelerators_visible{vendor="ascend"} 2.0')
    exporter.process.terminate()
    assert exporter.process.wait(2) == 0


def test_a_wrong_flag_is_bad_input() -> None:
    done = subprocess.run(
        [*PROGRAM, "--collect=npu", "--npu.smi-path=bin/npu-smi"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "--npu.smi-path" in done.stderr
    assert "absolute path" in done.stderr
    assert "Traceback" not in done.stderr
