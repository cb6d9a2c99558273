"""Recording rules, evaluated by the real PromQL engines, give the values worked out from the captures by hand.

What this does not prove: behaviour while a target restarts or changes its spelling within a window, several targets
that differ in version, and more than one model behind a target.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k3observe.catalogue import Catalogue
from k3observe.catalogue.expression import Spelling
from k3observe.catalogue.reading import read
from k3observe.drill.binaries import Release
from tests.programs import program

from .conftest import Captured
from .recorded import by_hand, entries, write_test

SAMPLES = [
    "vllm-0.6.6-v0.prom",
    "vllm-0.8.5.prom",
    "vllm-0.9.2-dp2.prom",
    "vllm-0.10.2.prom",
    "vllm-0.11.2.prom",
    "vllm-0.12.0.prom",
    "vllm-0.20.2.prom",
    "vllm-0.32.0.prom",
    "vllm-0.33.0.prom",
    "vllm-0.33.0-allflags.prom",
    "vllm-0.33.0-dp4-skew.prom",
    "vllm-0.33.0-served.prom",
    "sglang-0.4.10.prom",
    "sglang-0.5.10.prom",
    "sglang-0.5.23.prom",
    "sglang-0.5.23-dpattn8x2-eplb.prom",
    "mindie-documented.prom",
]


@pytest.mark.parametrize(("release", "spelling"), [("3.5", "colon"), ("2.42", "underscore")])
@pytest.mark.parametrize("name", SAMPLES)
def test_recorded_values_are_those_in_the_file(
    name: str, release: Release, spelling: Spelling, catalogue: Catalogue, captures: dict[str, Captured], tmp_path: Path
) -> None:
    capture = captures[name]
    wanted = by_hand(capture)
    assert len(wanted) >= 12
    assert all(wanted.values()), [record for record, values in wanted.items() if not values]
    test = write_test(tmp_path, catalogue, capture, spelling, wanted)
    command = [program("promtool", release), "test", "rules", test]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_what_doctor_reads_is_what_prometheus_records(
    name: str, catalogue: Catalogue, captures: dict[str, Captured], tmp_path: Path
) -> None:
    """Every gauge and counter of every capture, by the reader and by the rule."""
    capture = captures[name]
    wanted = {}
    for signal, entry in entries(catalogue, capture):
        if signal.kind == "histogram":
            continue
        values = read(signal, entry, lambda raw: capture.samples.get(raw, []), now=0.0)
        instance = (("instance", "i:1"),) if "instance" in signal.labels else ()
        service = (("role", "unified"), ("service", "svc"), ("stack", "s"))
        wanted[signal.series] = {(*labels, *instance, *service): value for labels, value in values.items()}
    assert len(wanted) >= 8
    test = write_test(tmp_path, catalogue, capture, "colon", wanted)
    run = subprocess.run([program("promtool"), "test", "rules", test], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
