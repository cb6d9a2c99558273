"""The command as it is called: exit codes, both outputs, several sources, a configuration, the version endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .synthetic import exposition
from .test_exposition_source import server

CONFIG = """
version: 1
stack: k3
language: zh-CN
services:
  - name: kimi-k3
    engine: {name: vllm, version: "VERSION"}
    targets: ["10.0.0.1:8000"]
"""


def doctor(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    code = "import sys; from k3observe.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "doctor", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.prom"
    path.write_text(exposition("vllm", "0.28.0"))
    return path


def test_json_has_sources_signals_and_alerts(capture: Path) -> None:
    run = doctor(str(capture), "--output", "json")
    assert run.returncode == 1, run.stderr  # alerts on devices and experts are blind without a sidecar
    document = json.loads(run.stdout)
    assert list(document) == ["sources", "signals", "alerts", "panels", "remedies"]
    (source,) = document["sources"]
    assert source["source"] == str(capture)
    assert source["engine"] == "vllm"
    assert set(source["version"]) == {"min", "max"}
    usage = next(row for row in document["signals"] if row["signal"] == "kv_cache_usage")
    assert usage == {
        "signal": "kv_cache_usage",
        "source": str(capture),
        "state": "alive",
        "metric": "vllm:kv_cache_usage_perc",
        "series": 1,
        "value": 0.5,
        "reason": None,
        "fix": None,
    }
    assert set(document["alerts"][0]) == {"alert", "service", "state", "planned", "reason", "fix"}
    assert {row["state"] for row in document["panels"]} == {"armed", "blind"}
    assert {row["state"] for row in document["alerts"]} == {"armed", "blind"}


def test_the_table_in_a_pipe_has_no_colour_and_says_what_to_do(capture: Path) -> None:
    run = doctor(str(capture))
    assert "\x1b" not in run.stdout
    assert "KVCacheUsageHigh" in run.stdout
    assert "give the sidecar's /metrics too" in run.stdout
    experts = next(line for line in run.stdout.splitlines() if line.startswith("Experts "))
    assert ", … (+" in experts


def test_columns_are_aligned_where_characters_are_wide(capture: Path) -> None:
    def column(line: str, word: str) -> int:
        return sum(2 if letter > "\u2e7f" else 1 for letter in line[: line.index(word)])

    lines = doctor(str(capture), "--language", "zh-CN").stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("信号"))
    assert column(lines[head], "指标") == column(lines[head + 1], "vllm:")


def test_standard_input_is_a_source(capture: Path) -> None:
    run = doctor("-", "--output", "json", stdin=capture.read_text())
    assert json.loads(run.stdout)["sources"][0]["engine"] == "vllm"


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["/nowhere"], "", "k3observe: /nowhere: cannot be read"),
        (["-"], "", "k3observe: -: has no metrics in it"),
        (["-"], "go_goroutines 1\n", "k3observe: -: is of no known engine or exporter: go_goroutines"),
        (["-"], "<html>", "k3observe: -:1: is a web page"),
        (["-", "-"], "a 1\n", "k3observe: -: standard input can be read once"),
        (["-", "--engine", "vlm"], "a 1\n", "did you mean 'vllm'?"),
        (["-", "--engine-version", "new"], "a 1\n", "--engine-version: is no version: 'new'"),
        (["-f", "/nowhere.yaml", "-"], "a 1\n", "/nowhere.yaml"),
        ([], "", "Missing argument"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(arguments: list[str], stdin: str, message: str) -> None:
    run = doctor(*arguments, stdin=stdin)
    assert run.returncode == 2, run.stdout
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_engine_and_version_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(exposition("vllm", "0.8.5"))
    document = json.loads(doctor(str(path), "--engine", "vllm-ascend", "--engine-version", "0.8.5", "--output",
                                 "json").stdout)  # fmt: skip
    assert document["sources"][0]["engine"] == "vllm-ascend"
    assert document["sources"][0]["version"] == {"min": "0.8.5", "max": "0.8.5"}


def test_a_version_newer_than_all_that_is_known_is_said(capture: Path) -> None:
    assert "vLLM 0.99 is newer than the newest known, 0.33" in doctor(str(capture), "--engine-version", "0.99").stdout


def test_an_engine_that_tells_its_version_is_believed() -> None:
    body = exposition("vllm", "0.28.0").encode()
    answers = {"/metrics": (200, {}, body), "/version": (200, {}, b'{"version": "0.27.1.dev3+g1"}')}
    with server(answers) as url:
        document = json.loads(doctor(url, "--output", "json").stdout)
    assert document["sources"][0]["version"] == {"min": "0.27.1", "max": "0.27.1"}


def test_a_configuration_decides_what_is_planned_and_in_which_language(tmp_path: Path, capture: Path) -> None:
    config = tmp_path / "k3observe.yaml"
    config.write_text(CONFIG.replace("VERSION", "0.28"))
    run = doctor("-f", str(config), str(capture), "--output", "json")
    assert run.returncode == 0, run.stdout + run.stderr
    alerts = {row["alert"]: row for row in json.loads(run.stdout)["alerts"]}
    assert alerts["KVCacheUsageHigh"] == {"alert": "KVCacheUsageHigh", "service": "kimi-k3", "state": "armed",
                                          "planned": True, "reason": None, "fix": None}  # fmt: skip
    assert (alerts["ExpertLoadVarianceHigh"]["state"], alerts["ExpertLoadVarianceHigh"]["planned"]) == ("blind", False)
    assert "vLLM" in alerts["ExpertLoadVarianceHigh"]["reason"]


def test_a_configuration_with_another_version_than_runs_is_blind_and_says_which(tmp_path: Path) -> None:
    config = tmp_path / "k3observe.yaml"
    config.write_text(CONFIG.replace("VERSION", "0.33"))
    capture = tmp_path / "old"
    capture.write_text(exposition("vllm", "0.8.5"))
    run = doctor("-f", str(config), str(capture), "--output", "json", "--language", "en")
    assert run.returncode == 1
    alert = next(row for row in json.loads(run.stdout)["alerts"] if row["alert"] == "KVCacheUsageHigh")
    assert alert["state"] == "blind"
    assert "vllm:gpu_cache_usage_perc" in alert["reason"]
    assert alert["fix"] == "set the engine's version to 0.8.5"


def test_a_fork_in_the_configuration_is_what_runs(tmp_path: Path, capture: Path) -> None:
    config = tmp_path / "k3observe.yaml"
    config.write_text(CONFIG.replace("name: vllm", "name: vllm-ascend").replace("VERSION", "0.28"))
    run = doctor("-f", str(config), str(capture), "--output", "json")
    document = json.loads(run.stdout)
    assert document["sources"][0]["engine"] == "vllm-ascend"
    assert next(row for row in document["alerts"] if row["alert"] == "KVCacheUsageHigh")["state"] == "armed"


def test_a_source_the_plan_needs_and_nobody_gave_is_named(tmp_path: Path, capture: Path) -> None:
    config = tmp_path / "k3observe.yaml"
    text = CONFIG.replace("VERSION", "0.28").replace("name: vllm", "name: vllm, args: {eplb: true}")
    config.write_text(text + "    sidecar: {collect: [experts]}\n")
    run = doctor("-f", str(config), str(capture), "--output", "json", "--language", "en")
    assert run.returncode == 1
    alert = next(row for row in json.loads(run.stdout)["alerts"] if row["alert"] == "ExpertBalanceLow")
    assert "k3observe sidecar, which is not among the sources given" in alert["reason"]
