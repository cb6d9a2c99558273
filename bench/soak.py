"""Soak: real sidecars on simulated devices, with faults at random: flat memory, no thread left, no wrong value.

``python bench/soak.py [--seconds 3600] [--seed N]``. Every value that is served is held against what was true when the
sidecar read it (its own timestamps say when). Exit status 1 when a value was wrong, a scrape was slow, or memory,
threads, open files or processes grew.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import COMPILED

from k3observe.drill import servers, stack
from k3observe.drill.devices import npu_smi, nvml
from k3observe.drill.experts import Experts, publishing
from k3observe.drill.replay import Target, load, serve
from k3observe.drill.traffic import Load, traffic

CARDS, NPUS, RANKS = 8, 4, 8
WINDOW = 10.0
"""Seconds of expert loads that the sidecars average over."""

SLOW = 1.0
"""Seconds that no scrape may take."""

SAMPLE = re.compile(r"([a-z0-9_]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
Labels = tuple[tuple[str, str], ...]


class Truth:
    """What was true from when on, for each thing that is read."""

    def __init__(self) -> None:
        self._courses: dict[str, list[tuple[float, float]]] = {}

    def set(self, name: str, value: float) -> None:
        course = self._courses.setdefault(name, [])
        course.append((time.time(), value))
        del course[:-2000]

    def between(self, name: str, start: float, end: float) -> list[float]:
        """The values in force at some time between."""
        course = [*self._courses.get(name, ())]  # the world goes on meanwhile, in another thread
        ends = [since for since, _ in course[1:]] + [float("inf")]
        return [value for (since, value), until in zip(course, ends, strict=True) if since <= end and until >= start]


def uuid(card: int) -> str:
    return f"GPU-{card:08d}-0000-4000-8000-000000000000"


@dataclass
class World:
    """Everything that the sidecars read, and how it is broken."""

    folder: Path
    gpus: stack.Gpus
    npu: Path
    engine: Target
    experts: Experts
    published: Path
    log: Path
    random: random.Random
    truth: Truth = field(default_factory=Truth)
    missing: set[int] = field(default_factory=set)
    lost: bool = False
    """Whether a card is listed but lost: it is no visible one."""
    npu_fault: str | None = None
    addresses: list[str] = field(default_factory=list)
    due: list[Callable[[World], Callable[[], None]]] = field(default_factory=list)

    def next_fault(self) -> Callable[[World], Callable[[], None]]:
        """Each once in an order of its own, then again in another."""
        if not self.due:
            self.due = self.random.sample(list(FAULTS), len(FAULTS))
        return self.due.pop()

    def move(self) -> None:
        """Change every value."""
        changes: dict[str, object] = {"cards": " ".join(str(n) for n in range(CARDS) if n not in self.missing)}
        for card in range(CARDS):
            used = (card + 1) * 10**10 + self.random.randrange(10**9)
            changes[f"gpu.{card}.memory.used"] = used
            self.truth.set(uuid(card), used)
        self.gpus.set(changes)
        self.truth.set("cards", CARDS - len(self.missing) - self.lost)
        self.write_npus()
        usage = round(self.random.uniform(0.1, 0.99), 6)
        self.truth.set("usage", usage)
        self.engine.replay.set_gauge("vllm:kv_cache_usage_perc", usage)
        factor = self.random.choice([1.0, 1.5, 2.0, 4.0])
        self.truth.set("factor", factor)
        self.experts.skew(self.random.randrange(RANKS), factor)

    def write_npus(self) -> None:
        state = npu_smi.cards("910", NPUS)
        for npu in state["npus"]:
            used = 10_000 * (npu["id"] + 1) + self.random.randrange(9_000)
            npu["chips"][0]["used"] = used
            self.truth.set(f"npu {npu['id']}", used * 2**20)
        if self.npu_fault:
            state["fault"] = {"kind": self.npu_fault}
        npu_smi.write_state(self.npu, state)

    def write_log(self) -> None:
        """One reading and some noise, as an engine logs them."""
        balance = round(self.random.uniform(0.3, 0.95), 4)
        self.truth.set("log", balance)
        with self.log.open("ab") as file:
            file.write(b"INFO an ordinary line\n(Worker_DP0_TP0_EP0 pid=1) INFO [eplb_state.py:634] EPLB step: 50 for "
                       b"model kimi-k3: avg_tokens=61440.00, max_tokens=%d, balancedness=%.4f, steps until the next "
                       b"rearrangement: 9\n" % (61440 / balance, balance))  # fmt: skip


def setting(world: World, key: str, value: object) -> Callable[[], None]:
    """Make a setting of the simulated driver, and return what takes it back."""
    world.gpus.set({key: value})

    def heal() -> None:
        del world.gpus.settings[key]
        world.gpus.set({})

    return heal


def card_hangs(world: World) -> Callable[[], None]:
    return setting(world, f"gpu.{world.random.randrange(CARDS)}.sleep", 3000)


def card_fails(world: World) -> Callable[[], None]:
    error = world.random.choice(["GPU_IS_LOST", "UNKNOWN", "TIMEOUT"])
    world.lost = error in ("GPU_IS_LOST", "UNKNOWN")
    world.truth.set("cards", CARDS - world.lost)
    answer = setting(world, f"gpu.{world.random.randrange(CARDS)}.error", error)

    def heal() -> None:
        answer()
        world.lost = False
        world.truth.set("cards", CARDS)

    return heal


def card_is_lost(world: World) -> Callable[[], None]:
    world.missing = {world.random.randrange(CARDS)}
    world.move()

    def heal() -> None:
        world.missing = set()
        world.move()

    return heal


def driver_is_reloaded(world: World) -> Callable[[], None]:
    world.gpus.set({"epoch": world.random.randrange(10**6)})
    return lambda: None


def npu_smi_fails(world: World) -> Callable[[], None]:
    world.npu_fault = world.random.choice(["hang", "orphan", "flood", "binary", "dcmi", "silent", "killed"])
    world.write_npus()

    def heal() -> None:
        world.npu_fault = None
        world.write_npus()

    return heal


def engine_fails(world: World) -> Callable[[], None]:
    world.engine.inject(world.random.choice(["gone", "hang", "error"]))
    return world.engine.heal


def engine_restarts(world: World) -> Callable[[], None]:
    world.engine.inject("gone")

    def back() -> None:
        world.engine.replay.restart()
        world.engine.heal()

    return back


def log_is_renamed(world: World) -> Callable[[], None]:
    world.log.replace(world.log.with_suffix(".1"))
    world.log.touch()
    return lambda: None


def log_is_truncated(world: World) -> Callable[[], None]:
    world.log.with_suffix(".2").write_bytes(world.log.read_bytes())
    os.truncate(world.log, 0)
    return lambda: None


def log_is_flooded(world: World) -> Callable[[], None]:
    with world.log.open("ab") as file:
        file.write(b"x" * (10 << 20) + b"\n" + bytes(range(256)) * 1000 + b"\n")
    return lambda: None


def plugin_file_is_torn(world: World) -> Callable[[], None]:
    files = sorted(world.published.glob("*.bin"))
    if files:
        path = world.random.choice(files)
        data = path.read_bytes()
        torn = world.random.choice([b"", data[: len(data) // 2], data[:40], os.urandom(len(data)), data + data])
        if world.random.random() < 0.2:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(torn)
    return lambda: None


def scrapers_misbehave(world: World) -> Callable[[], None]:
    """Half-open connections, half a request, and twenty scrapes at once."""
    held = []
    for address in world.addresses:
        host, port = address.split(":")
        for text in (b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(text)
            held.append(connection)
        crowd = [threading.Thread(target=read, args=(address,)) for _ in range(20)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()

    def heal() -> None:
        for connection in held:
            connection.close()

    return heal


FAULTS = (
    card_hangs, card_fails, card_is_lost, driver_is_reloaded, npu_smi_fails, npu_smi_fails, engine_fails,
    engine_restarts, log_is_renamed, log_is_truncated, log_is_flooded, plugin_file_is_torn, scrapers_misbehave,
)  # fmt: skip


def read(address: str) -> str:
    """Scrape."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> dict[tuple[str, Labels], float]:
    """Samples by name and labels."""
    found = {}
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a sample: {line[:200]}")
            found[match[1], tuple(sorted(LABEL.findall(match[2] or "")))] = float(match[3])
    return found


class Judge:
    """Holds what is served against the truth."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.held = 0
        self.wrong: list[str] = []

    def devices(self, samples: dict[tuple[str, Labels], float]) -> None:
        """By uuid: the places of GPUs change when one is lost."""
        read_at = {dict(labels)["uuid"]: value for (name, labels), value in samples.items()
                   if name == "k3_accelerator_last_read_timestamp_seconds"}  # fmt: skip
        for (name, labels), value in samples.items():
            if name == "k3_accelerator_memory_used_bytes":
                known = dict(labels)
                gpu = known["vendor"] == "nvidia"
                thing = known["uuid"] if gpu else f"npu {known['device'].split('-')[0]}"
                self._one_of(thing, value, read_at[known["uuid"]] - 8, read_at[known["uuid"]] + 1)

    def rest(self, samples: dict[tuple[str, Labels], float], now: float) -> None:
        read_at = {dict(labels)["collector"]: value for (name, labels), value in samples.items()
                   if name == "k3_source_last_success_timestamp_seconds"}  # fmt: skip
        for (name, labels), value in samples.items():
            known = dict(labels)
            if name == "k3_accelerators_visible" and known["vendor"] == "nvidia":
                self._one_of("cards", value, read_at["gpu"] - 8, read_at["gpu"] + 1)
            elif name == "k3_kv_cache_usage_ratio":
                self._one_of("usage", value, read_at["kv-cache"] - 5, read_at["kv-cache"] + 1)
            elif name == "k3_kv_cache_hits_total":
                queries = sum(v for (n, _), v in samples.items() if n == "k3_kv_cache_queries_total")
                self._say(abs(value - 0.9 * queries) <= 0.001 * queries + 1, f"{value} hits of {queries} queries")
            elif name == "k3_expert_balance_ratio" and known["scope"] == "expert":
                ranks = next(v for (n, other), v in samples.items() if n == name and ("scope", "rank") in other)
                self._say(0 < value <= ranks, f"balance of experts {value}, of their ranks {ranks}")
            elif name == "k3_expert_balance_ratio" and known["formula"] == "mean_of_layers":
                factors = self._truth.between("factor", now - WINDOW - 8, now)
                self._say(1 / max(factors) - 0.03 <= value <= 1.0, f"balance {value} with factors {set(factors)}")
            elif name == "k3_expert_balance_ratio":
                values = self._truth.between("log", now - WINDOW - 8, now)
                self._say(min(values) - 1e-3 <= value <= max(values) + 1e-3, f"balance {value} of {values}")
            elif name == "k3observe_exporter_collect_errors_total":
                self._say(value == 0, f"collector {known['collector']} raised {value:g} times")

    def _one_of(self, thing: str, value: float, start: float, end: float) -> None:
        values = self._truth.between(thing, start, end)
        self._say(any(abs(value - true) <= abs(true) * 1e-9 for true in values), f"{thing}: {value!r}, not of {values}")

    def _say(self, right: bool, what: str) -> None:
        self.held += 1
        if not right:
            self.wrong.append(f"{time.strftime('%H:%M:%S')} {what}")


@dataclass
class Footprint:
    """What a process holds over time."""

    pid: int
    memory: list[float] = field(default_factory=list)

    def sample(self) -> None:
        self.memory.append(self._status(r"VmRSS:\s+(\d+)") / 1024)

    @property
    def threads(self) -> int:
        return self._status(r"Threads:\s+(\d+)")

    @property
    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def drift(self) -> float:
        """MiB from the second quarter of the samples to the last: the first fills caches and windows."""
        quarter = len(self.memory) // 4
        return statistics.median(self.memory[-quarter:]) - statistics.median(self.memory[quarter : 2 * quarter])

    def _status(self, pattern: str) -> int:
        return int(re.findall(pattern, Path(f"/proc/{self.pid}/status").read_text())[0])


@contextmanager
def world(folder: Path, source: random.Random) -> Iterator[World]:
    """Everything that is read, moving."""
    published = folder / "published"
    published.mkdir()
    state = stack.Gpus(folder / "nvml.conf", {
        "cards": " ".join(map(str, range(CARDS))), "gpu.name": "NVIDIA H200", "gpu.memory.total": stack.MEMORY,
        **{f"gpu.{card}.uuid": uuid(card) for card in range(CARDS)},
    })  # fmt: skip
    nvml.write(state.state, state.settings)
    nvml.build(folder / "nvml")
    with ExitStack() as everything:
        engine = everything.enter_context(serve(load(stack.ENGINES / "vllm-0.33.prom")))
        traffic(engine.replay, "vllm", Load())
        experts = everything.enter_context(publishing(Experts(published, "kimi-k3", RANKS, 92)))
        npu = npu_smi.install(folder, npu_smi.cards("910", NPUS))
        log = folder / "engine.log"
        log.touch()
        yield World(folder, state, npu, engine, experts, published, log, source)


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


def strays(program: Path) -> list[int]:
    """Processes of the simulated npu-smi."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if str(program).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


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
    counted = dict.fromkeys((fault.__name__ for fault in FAULTS), 0)
    mover = threading.Thread(target=_move, args=(here, done), daemon=True)
    mover.start()
    while (now := time.monotonic()) - began < seconds:
        if now >= until:
            if heal is not None:
                heal()
                heal, until = None, now + here.random.uniform(0.3, 2)
            else:
                fault = here.next_fault()
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
        samples: dict[tuple[str, Labels], float] = parsed(read(server.address))
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
