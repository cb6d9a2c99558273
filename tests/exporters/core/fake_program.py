"""The exporter with collectors of the test in place of ``gpu`` and ``npu``; everything else is the real program."""

from __future__ import annotations

import argparse
import logging
import threading
import time
import types
from collections.abc import Iterable

from prometheus_client.core import Metric

from k3observe.exporters import families, flags
from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.main import main


class Fake:
    """A thousand temperatures; behaves badly as ``--<name>.mode`` says."""

    def __init__(self, name: str, mode: str) -> None:
        self.name, self._mode = name, mode
        self._status = SourceStatus(name, "fake", ("timeout",))
        self._hang = threading.Lock()
        self._hang.acquire()
        self.routes = {f"/{name}/v1/window": lambda: ("application/json", b'{"version": 1}')}
        self.renderings = 0

    def start(self) -> None:
        if self._mode == "no threads":
            threading.Thread.start = _no_thread  # type: ignore[method-assign]
        threading.Thread(target=self._read).start()  # not a daemon: a stuck driver call does not end by itself

    def _read(self) -> None:
        if self._mode == "slow start":
            time.sleep(1)
        if self._mode == "hang":
            self._hang.acquire()
        self._status.succeeded(0.01)

    def stop(self) -> None:
        if self._mode == "hang":
            self._hang.acquire()

    def ready(self) -> bool:
        return self._status.tried

    def collect(self) -> Iterable[Metric]:
        self.renderings += 1
        if self._mode == "hang":
            self._hang.acquire()
        temperature = families.TEMPERATURE.new()
        for number in range(1000):
            temperature.add_metric((self.name, str(number), f"GPU-{number}"), 40 + number / 8)
        yield temperature
        if self._mode == "raise":
            raise RuntimeError("device\nfell off the bus")
        bad = families.POWER.new()
        label = {"bad label": 5, "no Unicode": "\udcff"}.get(self._mode, "中文\u2028")
        bad.add_metric((self.name, "0", label), self.renderings)  # type: ignore[arg-type]
        yield bad
        yield from source_families([self._status])


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def module(name: str) -> types.ModuleType:
    fake = types.ModuleType(name)

    def add_flags(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(f"--{name}.mode", dest=f"{name}_mode", default="good")
        parser.add_argument(f"--{name}.list", dest=f"{name}_list", action="append")
        parser.add_argument(f"--{name}.fast", dest=f"{name}_fast", action=argparse.BooleanOptionalAction, default=True)

    def from_args(args: argparse.Namespace, log: logging.Logger) -> Fake:
        log.info("list %s fast %s", getattr(args, f"{name}_list"), getattr(args, f"{name}_fast"))
        return Fake(name, getattr(args, f"{name}_mode"))

    fake.add_flags, fake.from_args = add_flags, from_args  # type: ignore[attr-defined]
    return fake


if __name__ == "__main__":
    real = flags.collector_module
    flags.collector_module = lambda name: module(name) if name in ("gpu", "npu") else real(name)
    main()
