"""Everything that the sidecars of the soak read, moving, and what of it was true when."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from k3observe.drill import stack
from k3observe.drill.devices import npu_smi, nvml
from k3observe.drill.experts import Experts, publishing
from k3observe.drill.replay import Target, load, serve
from k3observe.drill.traffic import Load, traffic

CARDS, NPUS, RANKS = 8, 4, 8


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
