"""The real subprocess, on programs that do what ``npu-smi`` does when a driver is ill."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from k3observe.drill.devices import npu_smi
from k3observe.exporters.npu.runner import MAX_OUTPUT, NpuSmi, RunError
from k3observe.exporters.npu.table import parse
from tests.exporters.exporter_process import is_gone


def script(folder: Path, text: str) -> str:
    path = folder / "npu smi; $(touch pwned)"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def failure(tool: NpuSmi, *args: str) -> RunError:
    with pytest.raises(RunError) as caught:
        tool.run(*args)
    return caught.value


def test_output_status_and_fixed_arguments_come_back_without_a_shell(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, 'printf "%s|" "$@" "$LC_ALL"; echo no >&2; exit 187'), 5)
    assert tool.run("info", "-t", "$HOME; ls") == ("info|-t|$HOME; ls|C|", "no\n", 187)
    assert not (tmp_path / "pwned").exists()


def test_a_call_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, f"sleep 300 & echo $! > '{tmp_path}/child'; wait"), 0.5)
    started = time.monotonic()
    error = failure(tool, "info")
    assert error.reason == "timeout"
    assert "--npu.timeout" in str(error)
    assert time.monotonic() - started < 2
    child = int((tmp_path / "child").read_text())
    time.sleep(0.1)
    assert is_gone(child)


def test_a_call_that_ignores_sigterm_and_stops_its_output_is_killed_too(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, "trap '' TERM INT HUP; exec >&- 2>&-; while :; do sleep 1; done"), 0.3)
    assert failure(tool, "info").reason == "timeout"


@pytest.mark.parametrize("layout", ["910", "26"])
def test_a_grandchild_that_holds_the_pipe_costs_no_wait_and_no_output(tmp_path: Path, layout: str) -> None:
    state = npu_smi.cards(layout, 8) | {"fault": {"kind": "orphan"}}
    tool = NpuSmi(str(npu_smi.install(tmp_path, state)), 5)
    started = time.monotonic()
    output = tool.run("info")
    assert time.monotonic() - started < 2
    assert (output.status, output.stdout) == (0, npu_smi.table(state))


def test_a_grandchild_in_a_session_of_its_own_costs_no_wait(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, f"setsid sleep 5 & echo $! > '{tmp_path}/child'; echo done"), 5)
    started = time.monotonic()
    assert tool.run("info").stdout == "done\n"
    assert time.monotonic() - started < 2


def test_a_flood_is_cut_off_while_it_is_read(tmp_path: Path) -> None:
    tool = NpuSmi(str(npu_smi.install(tmp_path, npu_smi.cards("910", 1) | {"fault": {"kind": "flood"}})), 20)
    started = time.monotonic()
    error = failure(tool, "info")
    assert error.reason == "too_much_output"
    assert str(MAX_OUTPUT) in str(error)
    assert time.monotonic() - started < 5


def test_a_flood_on_stderr_keeps_its_beginning(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, "echo first >&2; head -c 3000000 /dev/zero >&2; echo table"), 20)
    output = tool.run("info")
    assert output.stdout == "table\n"
    assert output.stderr.startswith("first")
    assert len(output.stderr) < 100_000


def test_binary_output_is_text_that_no_table_is_read_from(tmp_path: Path) -> None:
    tool = NpuSmi(str(npu_smi.install(tmp_path, npu_smi.cards("910", 1) | {"fault": {"kind": "binary"}})), 5)
    assert parse(tool.run("info").stdout).devices == ()


def test_missing_and_broken_programs_say_what_helps(tmp_path: Path) -> None:
    gone = failure(NpuSmi(str(tmp_path / "gone"), 1), "info")
    assert (gone.reason, "--npu.smi-path" in str(gone)) == ("not_found", True)
    assert failure(NpuSmi("npu-smi-that-nobody-has", 1), "info").reason == "not_found"
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert failure(NpuSmi(str(plain), 1), "info").reason == "not_executable"
    plain.chmod(0o755)
    assert failure(NpuSmi(str(plain), 1), "info").reason == "not_executable"
    assert failure(NpuSmi(str(tmp_path), 1), "info").reason == "not_executable"


def test_a_name_is_looked_up_on_path_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool = NpuSmi("npu-smi", 5)
    assert failure(tool, "info").reason == "not_found"
    npu_smi.install(tmp_path, npu_smi.cards("910", 1))
    assert tool.run("info").status == 0


def test_a_process_killed_from_outside_has_a_negative_status(tmp_path: Path) -> None:
    tool = NpuSmi(str(npu_smi.install(tmp_path, npu_smi.cards("910", 1) | {"fault": {"kind": "killed"}})), 5)
    assert tool.run("info").status == -9


class Unkillable(NpuSmi):
    """A call that sits in the kernel: no test can make one, so here the signal is not sent."""

    def _kill(self, process) -> None:  # type: ignore[no-untyped-def]
        return


def test_no_call_is_started_beside_one_that_cannot_be_killed(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    tool = Unkillable(script(tmp_path, f"echo >> '{calls}'; exec sleep 1.5"), 0.2)
    assert failure(tool, "info").reason == "timeout"
    started = time.monotonic()
    error = failure(tool, "info")
    assert (error.reason, time.monotonic() - started < 0.1) == ("hung", True)
    assert calls.read_text() == "\n"
    time.sleep(1.2)
    assert failure(tool, "info").reason == "timeout"
    assert calls.read_text() == "\n\n"


def test_stop_from_another_thread_ends_the_call_at_once(tmp_path: Path) -> None:
    tool = NpuSmi(script(tmp_path, f"echo $$ > '{tmp_path}/pid'; exec sleep 300"), 300)
    timer = threading.Timer(0.3, tool.stop)
    timer.start()
    started = time.monotonic()
    assert failure(tool, "info").reason == "stopped"
    assert time.monotonic() - started < 1
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_nothing_is_left_open_or_unreaped_after_many_calls(tmp_path: Path) -> None:
    good = NpuSmi(script(tmp_path, "echo"), 5)
    good.run("info")
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = len(os.listdir("/proc/self/fd")), children.read_text()
    for _ in range(20):
        good.run("info")
    assert (len(os.listdir("/proc/self/fd")), children.read_text()) == before
