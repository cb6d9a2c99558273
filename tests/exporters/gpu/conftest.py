"""The real exporter process with the real binding, on a simulated driver."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3observe.drill.devices import nvml

FAST = ("--gpu.interval", "0.1", "--gpu.timeout", "0.4")
UUID = "GPU-4b330000-0000-4000-8000-{:012x}"
SAMPLE = re.compile(r'(\w+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = dict[str, str]


class Scrape:
    """One exposition: ``value`` of a series, ``rows`` of a family."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, Labels, float]] = []
        for line in text.splitlines():
            match = None if line.startswith("#") else SAMPLE.fullmatch(line)
            if match:
                self.samples.append((match[1], dict(LABEL.findall(match[2] or "")), float(match[3])))

    def rows(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        return [(found, value) for family, found, value in self.samples
                if family == name and labels.items() <= found.items()]

    def value(self, name: str, **labels: str) -> float | None:
        rows = self.rows(name, **labels)
        assert len(rows) <= 1, rows
        return rows[0][1] if rows else None

    def card(self, index: int, name: str, **labels: str) -> float | None:
        return self.value(f"k3_accelerator_{name}", uuid=UUID.format(index), **labels)


class Exporter:
    def __init__(self, folder: Path, state: Path, command: list[str]) -> None:
        self._state, self._log = state, folder / f"exporter-{time.monotonic_ns()}.log"
        environment = {**os.environ, **nvml.environment(folder / "driver", state)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        self.url = ""
        self.until(lambda: "listening on" in self.log())
        self.url = "http://" + re.search(r'listening on ([\d.:]+)', self.log())[1]  # type: ignore[index]

    def log(self) -> str:
        return self._log.read_text("utf-8")

    def says(self, text: str) -> None:
        self.until(lambda: text in self.log())

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return answer.read().decode()

    def scrape(self) -> Scrape:
        return Scrape(self.get("/metrics"))

    def until(self, condition: Callable[[], object], seconds: float = 25) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, f"did not happen within {seconds} s\n{self.log()}\n" + (
                self.get("/metrics") if self.url else "")
            time.sleep(0.03)

    def scrape_when(self, condition: Callable[[Scrape], object]) -> Scrape:
        found: list[Scrape] = []

        def look() -> bool:
            found.append(self.scrape())
            return bool(condition(found[-1]))

        self.until(look)
        return found[-1]

    def overlaps(self) -> str:
        path = Path(f"{self._state}.overlaps")
        return path.read_text() if path.exists() else ""

    def end(self) -> float:
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)
        return time.monotonic() - started


class Machine:
    """A simulated machine; ``set`` replaces some settings of its driver, None takes one away."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self._library = folder, library
        self.state = folder / "nvml.state"
        self._settings: dict[str, object] = {"cards": "0 1 2 3 4 5 6 7"}
        self._running: list[Exporter] = []
        (folder / "driver").mkdir()
        self.install()
        self.set({})

    def install(self) -> None:
        (self.folder / "driver" / nvml.LIBRARY).symlink_to(self._library)

    def uninstall(self) -> None:
        (self.folder / "driver" / nvml.LIBRARY).unlink()

    def set(self, settings: dict[str, object]) -> None:
        self._settings |= settings
        nvml.write(self.state, {key: value for key, value in self._settings.items() if value is not None})

    def run(self, *flags: str, script: str = "from k3observe.exporters.main import main; main()") -> Exporter:
        command = [sys.executable, "-c", script, "--collect", "gpu", "--web.listen-address", "127.0.0.1:0"]
        exporter = Exporter(self.folder, self.state, [*command, *FAST, *flags])
        self._running.append(exporter)
        return exporter

    def end(self) -> None:
        for exporter in self._running:
            exporter.process.kill()
            exporter.process.wait(5)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, nvml_library)
    yield machine
    machine.end()
