"""The whole process ``k3observe-exporter --collect npu`` on the simulated tool."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k3observe.drill.devices import npu_smi

EXPORTER = (sys.executable, "-m", "k3observe.exporters.main", "--collect", "npu")


@contextmanager
def serving(program: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*EXPORTER, f"--npu.smi-path={program}", "--npu.interval=0.2", "--web.listen-address=127.0.0.1:0", *flags],
        stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"listening on ([0-9.:]+)", line):
                yield process, f"http://{found[1]}"
                break
        else:
            pytest.fail("the exporter did not listen")
    finally:
        process.kill()
        process.communicate()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def wait_for(url: str, line: str) -> str:
    end = time.monotonic() + 10
    while line not in (body := get(f"{url}/metrics")):
        assert time.monotonic() < end, body
        time.sleep(0.05)
    return body


def children_of(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def test_a_scrape_of_an_a3_is_clean_for_promtool(tmp_path: Path, promtool: Path) -> None:
    state = npu_smi.cards("A3", 8)
    state["npus"][2]["chips"][1] |= {"health": "Alarm", "codes": ["0x80E01801"], "ecc": [3, 1]}
    with serving(npu_smi.install(tmp_path, state), "--npu.expected=16") as (_, url):
        body = wait_for(url, 'k3_accelerator_fault{code="0x80E01801",device="2-1",uuid="0000:86:00.0",'
                             'vendor="ascend"} 1.0')
        assert 'k3_accelerators_expected{vendor="ascend"} 16.0' in body
        assert 'k3_accelerators_visible{vendor="ascend"} 16.0' in body
        assert "_created" not in body
        body = wait_for(url, 'k3_accelerator_ecc_errors_total{device="2-1",type="uncorrected",uuid="0000:86:00.0",'
                             'vendor="ascend"} 1.0')
        subprocess.run([promtool, "check", "metrics"], input=body, text=True, check=True)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_hung_tool_and_its_children_end_with_an_exporter_that_is_killed(tmp_path: Path) -> None:
    tool, pids = tmp_path / "npu-smi", tmp_path / "pids"
    tool.write_text(f"#!/bin/sh\ntrap '' TERM HUP INT\nsleep 300 &\necho $$ $! >> '{pids}'\nwhile :; do wait; done\n")
    tool.chmod(0o755)
    with serving(tool, "--npu.timeout=300") as (process, _):
        end = time.monotonic() + 5
        while not pids.exists() or not pids.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        started = [int(pid) for pid in pids.read_text().split()]
        assert len(started) == 2
        assert not any(map(is_gone, started))
        process.send_signal(signal.SIGKILL)
        process.wait(2)
        end = time.monotonic() + 2
        while not all(map(is_gone, started)):
            assert time.monotonic() < end, "npu-smi outlived the exporter"
            time.sleep(0.02)


def test_a_hung_tool_delays_neither_scrape_nor_health_nor_the_end(tmp_path: Path) -> None:
    state = npu_smi.cards("910", 8) | {"fault": {"kind": "hang"}}
    with serving(npu_smi.install(tmp_path, state), "--npu.timeout=300") as (process, url):
        end = time.monotonic() + 5
        while not (tools := children_of(process.pid)):
            assert time.monotonic() < end
            time.sleep(0.02)
        for path in ("/metrics", "/-/healthy"):
            started = time.monotonic()
            get(url + path)
            assert time.monotonic() - started < 0.5
        process.send_signal(signal.SIGTERM)
        assert process.wait(1.0) == 0
    time.sleep(0.1)
    assert all(map(is_gone, tools))


def test_once_prints_the_table_and_what_it_lacks(tmp_path: Path) -> None:
    program = npu_smi.install(tmp_path, npu_smi.cards("310P", 2))
    done = subprocess.run(
        [*EXPORTER, "--once"], env={**os.environ, "K3OBSERVE_NPU_SMI_PATH": str(program)},
        capture_output=True, text=True, timeout=30, check=True)
    assert 'k3_accelerator_power_watts{device="1-0",uuid="0000:83:00.0",vendor="ascend"} 45.2' in done.stdout
    assert 'k3_accelerator_ecc_errors_total{device="1-1"' in done.stdout


def test_signals_that_the_parent_ignores_or_blocks_cost_no_reading_and_no_end(tmp_path: Path) -> None:
    program = npu_smi.install(tmp_path, npu_smi.cards("910", 2))
    code = ("import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nos.execv(sys.argv[1], sys.argv[1:])\n")
    process = subprocess.Popen(
        [sys.executable, "-c", code, *EXPORTER, f"--npu.smi-path={program}", "--web.listen-address=127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"listening on ([0-9.:]+)", process.stderr.readline())
        assert found
        wait_for(f"http://{found[1]}", 'k3_accelerators_visible{vendor="ascend"} 2.0')
        process.terminate()
        assert process.wait(2) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_wrong_flag_is_bad_input() -> None:
    done = subprocess.run([*EXPORTER, "--npu.smi-path=bin/npu-smi"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "--npu.smi-path" in done.stderr
    assert "absolute path" in done.stderr
    assert "Traceback" not in done.stderr
