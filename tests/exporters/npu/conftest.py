"""The real collector on a simulated npu-smi, without a web server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3observe.drill.devices import npu_smi
from k3observe.exporters.npu.collector import NpuCollector
from k3observe.exporters.npu.runner import NpuSmi

Labels = tuple[tuple[str, str], ...]


class Rig:
    """A collector that runs, and the state of its devices, which a test changes."""

    def __init__(self, program: Path, state: npu_smi.State, collector: NpuCollector) -> None:
        self.program, self.state, self.collector = program, state, collector

    def write(self) -> None:
        """Let the program see the changed state."""
        npu_smi.write_state(self.program, self.state)

    def samples(self) -> dict[str, dict[Labels, float]]:
        """Return what a scrape gives: values by labels (without the vendor) by name."""
        found: dict[str, dict[Labels, float]] = {}
        for metric in self.collector.collect():
            for sample in metric.samples:
                labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("vendor", "collector")))
                assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} twice"
                found[sample.name][labels] = sample.value
        return found

    def of(self, name: str, device: str, **more: str) -> float | None:
        """Return the value of ``k3_accelerator_NAME`` of a device, None when there is no series."""
        wanted = {"device": device, **more}
        values = [value for labels, value in self.samples().get(f"k3_accelerator_{name}", {}).items()
                  if wanted.items() <= dict(labels).items()]
        assert len(values) <= 1
        return values[0] if values else None

    def until(self, holds: Callable[[], Any], seconds: float = 8.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds} s:\n{self.samples()}"
            time.sleep(0.02)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Start a collector on a state."""
    started: list[NpuCollector] = []

    def start(state: npu_smi.State, timeout: float = 5.0, **options: Any) -> Rig:
        program = npu_smi.install(tmp_path, state)
        collector = NpuCollector(NpuSmi(str(program), timeout), logging.getLogger("npu-test"), 0.1, **options)
        collector.start()
        started.append(collector)
        rig = Rig(program, state, collector)
        rig.until(collector.ready)
        return rig

    yield start
    for collector in started:
        collector.stop()
