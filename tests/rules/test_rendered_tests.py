"""The tests that come with the rendered alerts pass, with the Prometheus of today and the oldest that is supported."""

from __future__ import annotations

import posixpath
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from k3observe.drill.binaries import Release
from k3observe.render import render
from tests.programs import program
from tests.rules.stacks import SERVICES, planned, stack

# the first questions of operators on the engine most of them run, and a whole small set; all of it in the long run
FIRST = (
    "KVCacheUsageHigh", "KVCacheHitRatioLow", "ExpertBalanceLow", "ExpertLoadVarianceHigh", "AcceleratorMemoryHigh"
)  # fmt: skip
LONG: list[tuple[str, Release]] = [(name, release) for name in SERVICES for release in ("3.5", "2.42")]


def run(name: str, release: Release, folder: Path, only: tuple[str, ...] = (), **more: object) -> str:
    promtool = program("promtool", release)
    for path, content in render(planned(stack(name) | more), frozenset({"prometheus"})).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    files = sorted((folder / "prometheus" / "tests").glob("*.yml"))
    files = [file for file in files if not only or file.stem.removeprefix("k3-") in only]
    assert len(files) >= max(1, len(only))
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda half: subprocess.run(
            [str(promtool), "test", "rules", *map(str, half)], capture_output=True, text=True, check=False,
        ), (files[::2], files[1::2]))  # fmt: skip
    return "".join(item.stdout + item.stderr for item in done if item.returncode)


def seconds(text: str) -> int:
    return sum(int(number) * {"s": 1, "m": 60, "h": 3600}[unit] for number, unit in re.findall(r"(\d+)([smh])", text))


def test_all_tests_of_a_service_evaluate_at_most_120_000_rules_which_is_what_they_cost() -> None:
    """Promtool evaluates every rule it has loaded at every step up to the last moment of a test."""
    rendered = render(planned(stack()), frozenset({"prometheus"}))
    documents = {path: yaml.load(content, yaml.CSafeLoader) for path, content in rendered.items()
                 if path.startswith(("prometheus/rules/", "prometheus/tests/"))}  # fmt: skip
    evaluations = 0
    for path, document in documents.items():
        if "tests" not in document:
            continue
        files = [posixpath.normpath(f"{posixpath.dirname(path)}/{file}") for file in document["rule_files"]]
        loaded = sum(len(group["rules"]) for file in files for group in documents[file]["groups"])
        for test in document["tests"]:
            moments = [*test.get("alert_rule_test", ()), *test.get("promql_expr_test", ())]
            last = max(seconds(moment["eval_time"]) for moment in moments)
            evaluations += loaded * (1 + last // seconds(document["evaluation_interval"]))
    assert 10_000 < evaluations <= 120_000


@pytest.mark.parametrize("release", ["3.5", "2.42"])
def test_the_tests_of_the_first_five_alerts_pass(release: Release, tmp_path: Path) -> None:
    assert run("vllm, nvidia by the sidecar", release, tmp_path, FIRST) == ""


def test_every_rendered_test_of_a_small_set_passes(tmp_path: Path) -> None:
    assert run("generic, nvidia by dcgm", "2.42", tmp_path) == ""


@pytest.mark.long
@pytest.mark.parametrize(("name", "release"), LONG)
def test_every_rendered_test_passes_with_every_source(name: str, release: Release, tmp_path: Path) -> None:
    assert run(name, release, tmp_path) == ""


@pytest.mark.long
def test_every_rendered_test_passes_with_other_numbers_intervals_and_labels(tmp_path: Path) -> None:
    more = {
        "identity_labels": ["cluster"],
        "external_labels": {"cluster": "hz-a"},
        "prometheus": {"version": "3.5", "scrape_interval": "30s", "evaluation_interval": "30s"},
        "language": "zh-CN",
        "alerts": {
            "KVCacheUsageHigh": {"threshold": 0.8, "for": "2m", "window": "4m"},
            "TimeToFirstTokenHigh": {"threshold": 7, "for": "3m"},
            "AcceleratorLost": {"for": "4m", "severity": "warning"},
            "AcceleratorUnhealthy": {"codes": [79], "window": "10m"},
            "SLOBurnRateFast": {"threshold": 10},
            "RequestErrorsHigh": {"threshold": 0.2, "params": {"least": 10}},
        },
    }
    assert run("vllm, nvidia by the sidecar", "3.5", tmp_path, **more) == ""
