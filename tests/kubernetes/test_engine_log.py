"""The logging configuration is read by real processes; the real sidecar reads what they write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.drill.servers import free_port, run, wait_until
from k3observe.render.engine_log import BACKUPS, LOG_DIR, MAX_BYTES, text

WORKER = """
import json, logging, logging.config, sys
logging.config.dictConfig(json.load(open(sys.argv[1])))
name, line, count = sys.argv[2], sys.argv[3], int(sys.argv[4])
for n in range(count):
    logging.getLogger(name).info(line.replace("%N", str(n)))
logging.getLogger("vllm.engine").info("general")
"""
STEP = ("EPLB step: %N for model moonshotai/Kimi-K3: avg_tokens=61440.00, max_tokens=66941, balancedness=0.9178, "
        "steps until the next rearrangement: 750")  # fmt: skip


def configured(folder: Path, engine: str = "vllm") -> Path:
    """The configuration, with the pod's directory replaced."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    file = folder / "logging.json"
    file.write_text(text(engine).replace(LOG_DIR, str(logs)))
    return file


def write(file: Path, name: str, line: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, file, name, line, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("engine", "name"), [
    ("vllm", "vllm.distributed.eplb.eplb_state"), ("vllm-ascend", "vllm.logger"), ("sglang", "sglang.srt.eplb"),
])  # fmt: skip
def test_each_process_has_a_file_of_its_own_bounded_in_size_and_standard_output_stays(
    tmp_path: Path, engine: str, name: str
) -> None:
    file = configured(tmp_path, engine)
    processes = [write(file, name, STEP, 12_000) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert all(output.count(b"EPLB step") == 12_000 and b"general" in output for output in outputs)
    logs = list((tmp_path / "logs").glob("*.log"))
    assert len(logs) == 2
    for log in logs:
        generations = list(log.parent.glob(f"{log.name}*"))
        assert 1 < len(generations) <= 1 + BACKUPS
        assert all(part.stat().st_size <= MAX_BYTES for part in generations)


def test_a_process_that_logs_nothing_about_experts_makes_no_file(tmp_path: Path) -> None:
    process = write(configured(tmp_path), "vllm.entrypoints", "serving", 10)
    assert process.communicate(timeout=60)[0].count(b"serving") == 10
    assert list((tmp_path / "logs").iterdir()) == []


def test_the_sidecar_reads_the_files_of_all_processes(tmp_path: Path) -> None:
    file = configured(tmp_path)
    port = free_port()
    command = [
        sys.executable, "-m", "k3observe.exporters.main", "--collect=experts", "--experts.source=log",
        f"--experts.log-file={tmp_path}/logs/*.log", "--experts.engine=vllm", "--experts.engine-version=0.33",
        "--experts.ranks=8", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with run("exporter", command, port, tmp_path, ready="/-/healthy") as server:
        def metrics() -> str:
            import urllib.request

            with urllib.request.urlopen(f"{server.url}/metrics", timeout=5) as answer:
                body: str = answer.read().decode()
            return body

        wait_until(lambda: 'k3_source_up{collector="experts"' in metrics(), "the first look", 20)
        for process in [write(file, "vllm.distributed.eplb.eplb_state", STEP, 50) for _ in range(2)]:
            process.communicate(timeout=60)
        wait_until(lambda: "k3_expert_balance_ratio{" in metrics(), "the balance", 20)
        value = next(line for line in metrics().splitlines() if line.startswith("k3_expert_balance_ratio{"))
        assert float(value.split()[-1]) == pytest.approx(61440 / 66941, rel=1e-3)
