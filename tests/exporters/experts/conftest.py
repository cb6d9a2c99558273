"""The real exporter as a process, scraped over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from prometheus_client.parser import text_string_to_metric_families

from tests.exporters.experts.published import Engine, Reader

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")

Labels = tuple[tuple[str, str], ...]


class Sidecar:
    """A running k3observe-exporter with the collector experts."""

    def __init__(self, log: Path, *flags: str, stdin: int | None = None) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "k3observe.exporters.main", "--collect=experts",
                 "--web.listen-address=127.0.0.1:0", "--experts.interval=100ms", "--experts.timeout=1s", *flags],
                stdin=stdin, stderr=output, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self.url = self._url()

    def _url(self) -> str:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            if match := re.search(r"listening on ([\d.:]+)", self.log.read_text()):
                return f"http://{match[1]}"
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            body = answer.read()
        assert isinstance(body, bytes)
        return body

    def scrape(self) -> dict[str, dict[Labels, float]]:
        """Return samples by name and sorted labels."""
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics").decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return samples

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sample of a name that has these labels; None where there is none."""
        for found, value in self.scrape().get(name, {}).items():
            if labels.items() <= dict(found).items():
                return value
        return None

    def expect(self, name: str, value: float | None, **labels: str) -> None:
        """Wait until a sample has this value."""
        deadline = time.monotonic() + 15
        while (found := self.value(name, **labels)) != (None if value is None else pytest.approx(value)):
            assert time.monotonic() < deadline, (name, labels, found, self.log.read_text())
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    running: list[Sidecar] = []

    def start(*flags: str, **options: Any) -> Sidecar:
        running.append(Sidecar(tmp_path / f"sidecar-{len(running)}.log", *flags, **options))
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.fixture
def counts_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a document of counts that ends now, atomically."""

    def write(name: str, counts: list[list[int]], **fields: Any) -> Path:
        path, new = tmp_path / name, tmp_path / f"{name}.new"
        new.write_text(json.dumps({
            "version": 1, "kind": "window", "time": time.time(), "model": "K3", "scope": "rank", "counts": counts,
            **fields}))
        new.rename(path)
        return path

    return write


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)
