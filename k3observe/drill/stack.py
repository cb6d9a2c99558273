"""Simulated services on this machine: engines that replay an exposition, real sidecars over simulated devices.

Everything above the devices is real: the sidecars are processes of ``k3observe-exporter``, and what they read (the
driver's library, ``npu-smi``, the plugin's files, the engine's ``/metrics``) answers as the real thing does.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3observe.drill import servers
from k3observe.drill.devices import npu_smi, nvml
from k3observe.drill.experts import Experts, publishing
from k3observe.drill.replay import Target, load, serve
from k3observe.drill.traffic import Load, traffic

MEMORY = 150_754_820_096
"""Bytes of an H200."""

ENGINES = Path(__file__).with_name("engines")


@dataclass
class Gpus:
    """The simulated cards of a node; ``set`` changes them while a sidecar reads them."""

    state: Path
    settings: dict[str, object] = field(default_factory=dict)

    def set(self, settings: Mapping[str, object]) -> None:
        """Change settings of the simulated driver (``{"gpu.3.temperature": 92}``); the others stay."""
        self.settings |= settings
        nvml.write(self.state, self.settings)


@dataclass
class Node:
    """One engine and what is beside it."""

    engine: Target
    sidecar: str | None = None
    gpus: Gpus | None = None
    npus: Path | None = None
    experts: Experts | None = None


@dataclass
class Service:
    """A simulated service, and its entry in ``k3observe.yaml``."""

    name: str
    config: dict[str, Any]
    nodes: list[Node]


@contextmanager
def vllm(
    folder: Path, name: str = "kimi-k3", replicas: int = 2, gpus: int = 8, sidecars: bool = True
) -> Iterator[Service]:
    """Kimi K3 on vLLM 0.33 with expert parallelism, ``gpus`` cards a node, read by GPU, expert and KV sidecars."""
    with ExitStack() as stack:
        nodes = []
        for index in range(replicas):
            here = folder / f"{name}-{index}"
            node = Node(stack.enter_context(serve(load(ENGINES / "vllm-0.33.prom"))))
            traffic(node.engine.replay, "vllm", Load())
            if sidecars:
                _vllm_sidecar(stack, here, node, gpus)
            nodes.append(node)
        config: dict[str, Any] = {
            "name": name,
            "model": {"preset": "kimi-k3", "served_name": "kimi-k3", "startup_grace": "2m"},
            "engine": {"name": "vllm", "version": "0.33", "args": {
                "gpu_memory_utilization": 0.92, "max_num_seqs": 16, "tensor_parallel": 8, "expert_parallel": True,
                "prefix_caching": True, "eplb": True}},
            "targets": [node.engine.address for node in nodes],
        }  # fmt: skip
        if sidecars:
            config["accelerators"] = {"kind": "nvidia", "per_node": gpus}
            config["sidecar"] = {
                "collect": ["gpu", "experts", "kv-cache"], "targets": [node.sidecar for node in nodes],
                "experts": {"source": "plugin"},
            }  # fmt: skip
        yield Service(name, config, nodes)


def _vllm_sidecar(stack: ExitStack, folder: Path, node: Node, gpus: int) -> None:
    published = folder / "experts"
    published.mkdir(parents=True)
    node.experts = stack.enter_context(publishing(Experts(published, "kimi-k3", ranks=8, instance=folder.name)))
    # those of one node differ from those of another, as real ones do
    uuids = [f"GPU-{zlib.crc32(folder.name.encode()):08x}-0000-4000-8000-{card:012x}" for card in range(gpus)]
    node.gpus = Gpus(folder / "nvml.conf", {
        **{f"gpu.{card}.uuid": uuid for card, uuid in enumerate(uuids)},
        "cards": " ".join(map(str, range(gpus))), "gpu.name": "NVIDIA H200", "gpu.memory.total": MEMORY,
        "gpu.memory.used": int(0.92 * MEMORY), "gpu.utilization": 87, "gpu.temperature": 64, "gpu.power": 520_000,
        "gpu.power.limit": 700_000,
    })  # fmt: skip
    nvml.write(node.gpus.state, node.gpus.settings)
    library = nvml.build(folder.parent / "nvml")
    node.sidecar = stack.enter_context(sidecar(
        folder, ["--collect", "gpu,experts,kv-cache", "--gpu.interval", "1", "--gpu.expected", str(gpus),
                 "--experts.source", "plugin", "--experts.plugin-dir", str(published), "--experts.window", "10s",
                 "--experts.interval", "1", "--experts.layers", "--experts.top", "10",
                 *(f"--experts.rank-device={card}={card}/{uuids[card]}" for card in range(gpus)), "--kv-cache.url",
                 node.engine.url, "--kv-cache.interval", "1"],
        nvml.environment(library.parent, node.gpus.state)))  # fmt: skip


@contextmanager
def sglang(folder: Path, name: str = "qwen-sglang") -> Iterator[Service]:
    """A model on SGLang 0.5.23, one engine, no sidecar."""
    with serve(load(ENGINES / "sglang-0.5.23.prom")) as target:
        traffic(target.replay, "sglang", Load(requests=2.0, cache=0.4, running=6.0))
        yield Service(name, {
            "name": name,
            "engine": {"name": "sglang", "version": "0.5.23", "args": {
                "tensor_parallel": 8, "max_num_seqs": 64, "gpu_memory_utilization": 0.85}},
            "targets": [target.address],
        }, [Node(target)])  # fmt: skip


@contextmanager
def mindie(folder: Path, name: str = "kimi-mindie", npus: int = 8) -> Iterator[Service]:
    """Kimi K3 on MindIE, one engine on a node of Ascend NPUs read by a sidecar through ``npu-smi``."""
    here = folder / name
    here.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        node = Node(stack.enter_context(serve(load(ENGINES / "mindie.prom"))))
        traffic(node.engine.replay, "mindie", Load(requests=1.0, cache=0.5, running=8.0))
        node.npus = npu_smi.install(here, npu_smi.cards("910", npus, used=57000))
        node.sidecar = stack.enter_context(sidecar(
            here, ["--collect", "npu", "--npu.smi-path", str(node.npus), "--npu.interval", "2",
                   "--npu.expected", str(npus)], {}))  # fmt: skip
        yield Service(name, {
            "name": name,
            "model": {"preset": "kimi-k3", "served_name": "kimi-k3", "startup_grace": "2m"},
            "engine": {"name": "mindie", "version": "2.0", "args": {"tensor_parallel": 8, "max_num_seqs": 32}},
            "targets": [node.engine.address],
            "accelerators": {"kind": "ascend", "per_node": npus},
            "sidecar": {"collect": ["npu"], "targets": [node.sidecar]},
        }, [node])  # fmt: skip


@contextmanager
def sidecar(folder: Path, arguments: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Run a real ``k3observe-exporter`` and yield its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = servers.free_port()
    argv: list[str | Path] = [sys.executable, "-m", "k3observe.exporters.main", *arguments]
    if environment:
        argv = ["/usr/bin/env", *(f"{name}={value}" for name, value in environment.items()), *argv]
    with servers.run("sidecar", [*argv, "--web.listen-address", f"127.0.0.1:{port}"], port, folder) as server:
        yield server.address
