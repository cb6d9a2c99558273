"""``k3observe demo`` as a person runs it: what it says, how long it takes, and that it leaves nothing running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from k3observe.drill.binaries import Release
from k3observe.drill.servers import wait_until

from .room import K3OBSERVE, end_session, k3observe, members, nothing_left

needs_servers = pytest.mark.parametrize("toolset", ["3.5"], indirect=True)

PROMISED = (
    r"\$ k3observe init --from-command 'vllm serve moonshotai/Kimi-K3",
    r"simulated engine vLLM 0\.33  http://127\.0\.0\.1:\d+/metrics",
    r"real sidecar, 8 fake GPUs   http://127\.0\.0\.1:\d+/metrics",
    r"\$ k3observe render",
    r"\d+ files in .+, \d+ alerts armed",
    r"promtool: \d+ test files pass",
    r"Prometheus    http://127\.0\.0\.1:\d+",
    r"Alertmanager  http://127\.0\.0\.1:\d+",
    r"Watchdog arrived",
    r"nothing else fires",
    *(rf"{alert} is {state}" for alert in ("KVCacheUsageHigh", "ExpertLoadVarianceHigh", "AcceleratorLost")
      for state in ("pending", "firing")),
    r"scaler was notified \(action scale_out\)",
    r"rebalancer was notified \(action rebalance\)",
    r"devices was notified \(action replace_device\)",
    r"value +97%",
    r"threshold +90%",
    r"runbook_url +https://\S+/KVCacheUsageHigh",
    *(rf"healed: {receiver} was told that it is resolved" for receiver in ("scaler", "rebalancer", "devices")),
    r"Everything worked\. Files and logs are in \S+",
)  # fmt: skip


@contextmanager
def demo(output: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demonstration in a session of its own, its output in a file."""
    with (
        output.open("w") as file,
        subprocess.Popen([K3OBSERVE, "demo", *arguments], stdout=file, stderr=subprocess.STDOUT, text=True,
                         stdin=subprocess.DEVNULL, start_new_session=True) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            end_session(process.pid)


def said(output: Path, pattern: str, seconds: float, process: subprocess.Popen[str]) -> re.Match[str]:
    """Wait until the output holds a pattern."""
    deadline = time.monotonic() + seconds
    while not (found := re.search(pattern, output.read_text())):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, f"no {pattern!r} in\n{output.read_text()}"
        time.sleep(0.1)
    return found


@pytest.mark.long
@needs_servers
def test_the_demonstration_keeps_all_its_promises_within_three_minutes_and_leaves_nothing_running(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, promtool: Path, c_compiler: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with demo(output, "-o", str(tmp_path / "demo")) as process:
        assert process.wait(180) == 0, output.read_text()
        nothing_left(process.pid, seconds=2)
    text, position = output.read_text(), 0
    for pattern in PROMISED:
        found = re.search(pattern, text)
        assert found, f"no {pattern!r} in\n{text}"
        position = max(position, found.end())
    assert (tmp_path / "demo/bundle/prometheus/prometheus.yml").exists()
    assert (tmp_path / "demo/data/prometheus.log").exists()


@pytest.mark.long
@needs_servers
def test_kept_running_it_serves_until_ctrl_c_and_then_nothing_is_left(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, promtool: Path, c_compiler: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with demo(output, "--keep", "-o", str(tmp_path / "demo")) as process:
        said(output, "Ctrl-C ends it", 180, process)
        url = said(output, r"Everything worked[\s\S]*Prometheus +(http://\S+)", 5, process)[1]
        with urllib.request.urlopen(f"{url}/-/healthy", timeout=5) as answer:
            assert answer.status == 200
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        assert process.wait(20) == 0, output.read_text()
        nothing_left(process.pid, seconds=2)
    assert "Traceback" not in output.read_text()
    assert output.read_text().rstrip().endswith("ended; nothing is left running")


@pytest.mark.long
@needs_servers
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)], ids=["TERM", "KILL"])
def test_ended_in_the_middle_it_leaves_nothing_running(
    number: signal.Signals, status: int, toolset: Release, prometheus_bin: Path, alertmanager_bin: Path,
    promtool: Path, c_compiler: Path, tmp_path: Path,
) -> None:  # fmt: skip
    output = tmp_path / "output"
    with demo(output, "-o", str(tmp_path / "demo")) as process:
        said(output, "Alertmanager  http", 60, process)
        assert len(members(process.pid)) >= 5  # itself, two sidecars, Alertmanager, Prometheus
        process.send_signal(number)
        assert process.wait(20) == status
        nothing_left(process.pid)
    assert "Traceback" not in output.read_text()


@needs_servers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_ended_while_the_unit_tests_run_it_ends_them_at_once(
    number: signal.Signals, toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, promtool: Path,
    c_compiler: Path, tmp_path: Path,
) -> None:  # fmt: skip
    output = tmp_path / "output"
    with demo(output, "-o", str(tmp_path / "demo")) as process:
        said(output, r"\$ promtool test rules", 60, process)
        wait_until(lambda: any("promtool test" in argv for argv in members(process.pid).values()), "promtool runs", 10,
                   every=0.02)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) == 130
        took = time.monotonic() - began
        nothing_left(process.pid, seconds=0.5)
    assert took < 3
    assert "Traceback" not in output.read_text()


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = k3observe("demo", "-o", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"k3observe: {tmp_path}: is not empty: name a new folder with -o\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


WITHOUT_CACHE = """
import sys
from pathlib import Path
from k3observe.drill import binaries
binaries.PROJECT = Path(sys.argv[1])
from k3observe.cli.main import main
main(["demo", "-o", sys.argv[2]])
"""


def test_without_the_servers_it_says_which_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CACHE, tmp_path / "elsewhere", tmp_path / "demo"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("k3observe demo: prometheus >= 3.5 is missing")
    assert "make setup" in done.stderr
    assert "K3OBSERVE_BIN" in done.stderr
    assert "Traceback" not in done.stderr


@needs_servers
def test_without_a_compiler_it_says_what_to_install_and_leaves_nothing_running(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, promtool: Path, tmp_path: Path
) -> None:
    for name in ("sh", "dirname", "readlink", "env"):  # what a wrapper around a server may need
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    environment = {name: value for name, value in os.environ.items() if name != "CC"} | {"PATH": str(tmp_path)}
    done = k3observe("demo", "-o", tmp_path / "demo", env=environment)
    assert done.returncode == 1
    assert "no C compiler" in done.stderr
    assert "Traceback" not in done.stderr
