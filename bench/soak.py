"""Soak: real sidecars on simulated devices, with faults at random: flat memory, no thread left, no wrong value.

``python bench/soak.py [--seconds 3600] [--seed N]``. Every value that is served is held against what was true when the
sidecar read it (its own timestamps say when). Exit status 1 when a value was wrong, a scrape was slow, or memory,
threads, open files or processes grew.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from measure import COMPILED
from soaking.exposition import parsed, read
from soaking.faults import FAULTS, in_turn
from soaking.footprint import Footprint, strays
from soaking.judge import WINDOW, Judge
from soaking.world import RANKS, World, world

from k3observe.drill import servers
from k3observe.drill.devices import nvml

SLOW = 1.0
"""Seconds that no scrape may take."""


@contextmanager
def sidecar(name: str, folder: Path, arguments: list[str], environment: dict[str, str]) -> Iterator[servers.Server]:
    """A real exporter."""
    port = servers.free_port()
    pairs = [f"{key}={value}" for key, value in {**environment, **cache()}.items()]
    argv = ["/usr/bin/env", *pairs, sys.executable, "-m", "k3observe.exporters.main", *arguments,
            "--web.listen-address", f"127.0.0.1:{port}"]  # fmt: skip
    with servers.run(name, argv, port, folder) as server:
        yield server


def cache() -> dict[str, str]:
    """Compiled modules, as an installed program has them."""
    return {name: COMPILED[name] for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}


def soak(seconds: float, seed: int) -> list[str]:
    """Run, report, and return what was wrong."""
    print(f"seed {seed}, {seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as name, ExitStack() as everything:
        folder = Path(name)
        here = everything.enter_context(world(folder, random.Random(seed)))
        here.move()
        devices = everything.enter_context(sidecar("devices", folder, [
            "--collect", "gpu,npu,kv-cache,experts", "--gpu.interval", "1", "--gpu.timeout", "2", "--npu.smi-path",
            str(here.npu), "--npu.interval", "1", "--npu.timeout", "2", "--kv-cache.url", here.engine.url,
            "--kv-cache.interval", "1", "--kv-cache.timeout", "2", "--experts.source", "plugin",
            "--experts.plugin-dir", str(here.published), "--experts.interval", "1", "--experts.window",
            f"{WINDOW:g}s"], nvml.environment(folder / "nvml", here.gpus.state)))  # fmt: skip
        logs = everything.enter_context(sidecar("logs", folder, [
            "--collect", "experts", "--experts.source", "log", "--experts.log-file", str(here.log),
            "--experts.engine", "vllm", "--experts.engine-version", "0.33.0", "--experts.ranks", str(RANKS),
            "--experts.window", f"{WINDOW:g}s"], {}))  # fmt: skip
        here.addresses = [devices.address, logs.address]
        return _watch(here, [devices, logs], seconds)


def _watch(here: World, running: list[servers.Server], seconds: float) -> list[str]:
    judge, prints = Judge(here.truth), [Footprint(server.process.pid) for server in running]
    for server in running:
        read(server.address)  # what serves starts with the first request
    time.sleep(3)
    before = [(p.threads, p.files) for p in prints]
    began = said = time.monotonic()
    done, took, heal, until = threading.Event(), list[float](), None, 0.0
    faults = in_turn(here.random)
    counted = dict.fromkeys((fault.__name__ for fault in FAULTS), 0)
    mover = threading.Thread(target=_move, args=(here, done), daemon=True)
    mover.start()
    while (now := time.monotonic()) - began < seconds:
        if now >= until:
            if heal is not None:
                heal()
                heal, until = None, now + here.random.uniform(0.3, 2)
            else:
                fault = next(faults)
                counted[fault.__name__] += 1
                heal, until = fault(here), now + here.random.uniform(1, 4 if min(counted.values()) < 2 else 12)
        for server in running:
            _scrape(server, judge, took)
        for footprint in prints:
            footprint.sample()
        if now - said >= 60:
            said = now
            print(_line(now - began, judge, prints, took), flush=True)
        time.sleep(0.5)
    if heal is not None:
        heal()
    done.set()
    mover.join()
    print(_line(seconds, judge, prints, took), *(f"  {count:5} x {name}" for name, count in counted.items()), sep="\n")
    return [*judge.wrong, *_grown(here, running, prints, before),
            *[f"{sum(t > SLOW for t in took)} scrapes took longer than {SLOW:g} s, the slowest {max(took):.2f} s"
              for _ in [0] if max(took) > SLOW]]  # fmt: skip


def _move(here: World, done: threading.Event) -> None:
    while not done.wait(1):
        here.write_log()
        if here.random.random() < 0.4:
            here.move()


def _scrape(server: servers.Server, judge: Judge, took: list[float]) -> None:
    start = time.monotonic()
    try:
        samples = parsed(read(server.address))
    except (OSError, ValueError) as error:
        judge.wrong.append(f"{server.name}: {error}")
        return
    took.append(time.monotonic() - start)
    judge.devices(samples)
    judge.rest(samples, time.time())


def _line(passed: float, judge: Judge, prints: list[Footprint], took: list[float]) -> str:
    memory = ", ".join(f"{p.memory[-1]:.1f} MiB {p.threads} threads {p.files} files" for p in prints)
    return (f"{passed:6.0f} s  {judge.held} values held, {len(judge.wrong)} wrong; {memory}; scrapes p50 "
            f"{statistics.median(took) * 1e3:.1f} ms, worst {max(took) * 1e3:.0f} ms")  # fmt: skip


def _grown(here: World, running: list[servers.Server], prints: list[Footprint], before: list[Any]) -> list[str]:
    """What is left over half a minute after the last fault."""
    def calm() -> bool:
        return all(p.threads <= b[0] and p.files <= b[1] for p, b in zip(prints, before, strict=True))

    deadline = time.monotonic() + 40
    while not calm() and time.monotonic() < deadline:
        time.sleep(0.2)
    wrong = []
    for server, footprint, (threads, files) in zip(running, prints, before, strict=True):
        if server.process.poll() is not None:
            return [f"{server.name} ended with status {server.process.returncode}"]
        if footprint.threads > threads or footprint.files > files:
            wrong.append(f"{server.name}: {footprint.threads} threads and {footprint.files} files after, "
                         f"{threads} and {files} before")  # fmt: skip
        print(f"{server.name}: memory {footprint.drift:+.2f} MiB from the second quarter to the last")
        if footprint.drift > 1 + 0.02 * footprint.memory[-1]:
            wrong.append(f"{server.name}: memory grew by {footprint.drift:.1f} MiB")
    time.sleep(3)
    if len(left := strays(here.npu)) > 1:  # one may run at this moment
        wrong.append(f"{len(left)} processes of npu-smi are left: {left}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    wrong = soak(given.seconds, given.seed)
    print(*(f"WRONG {text}" for text in wrong[:50]), sep="\n")
    print("ok" if not wrong else f"{len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
