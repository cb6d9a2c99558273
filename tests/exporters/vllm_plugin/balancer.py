"""Stand-ins with the names and shapes of vLLM's load balancer and of the few functions of torch it takes.

The real ones run in ``make test-vllm``; these let every test run without them. Tensors are NumPy arrays.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

SOURCE = '''
from dataclasses import dataclass, field
from typing import Any

import tests.exporters.vllm_plugin.balancer as stand_in


def get_ep_group():
    return stand_in.GROUP


@dataclass
class EplbModelState:
    expert_load_pass: Any
    expert_load_window: Any
    physical_to_logical_map: Any
    model_name: str
    model: Any
    rebalanced: bool = False


class EplbState:
    is_async = False

    def __init__(self, window=20, interval=60, models=None):
        self.model_states = models or {}
        self.expert_rearrangement_step = interval - interval // 4
        self.expert_rearrangement_step_interval = interval
        self.expert_load_window_step = 0
        self.expert_load_window_size = window
        self.recording = True
        self.moves = []

    def step(self, is_dummy=False, is_profile=False, log_stats=False):
        """The docstring of the engine."""
        if is_dummy:
            for state in self.model_states.values():
                state.expert_load_pass.values[:] = 0
        if is_profile:
            self.rearrange(is_profile=True)
            return "profiled"
        if not is_dummy and self.recording:
            for state in self.model_states.values():
                state.expert_load_window.values[self.expert_load_window_step] = state.expert_load_pass.values
                state.expert_load_pass.values[:] = 0
            self.expert_load_window_step = (self.expert_load_window_step + 1) % self.expert_load_window_size
        self.expert_rearrangement_step += 1
        if self.expert_rearrangement_step >= self.expert_rearrangement_step_interval:
            self.expert_rearrangement_step = 0
            self.rearrange()
        return "stepped"

    def rearrange(self, is_profile=False, rank_mapping=None):
        if not is_profile:
            for move in self.moves:
                move(self)
'''


class Tensor:
    """What the plugin takes of a tensor in the host's memory."""

    is_cuda = False
    device = types.SimpleNamespace(type="cpu")

    def __init__(self, values: Any, pinned: bool = False) -> None:
        self.values, self.pinned = values, pinned

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Tensor:
        return type(self)(self.values[key])

    def __iadd__(self, other: Tensor) -> Tensor:
        self.values += other.values
        return self

    def sum(self, dim: int, dtype: Any) -> Tensor:
        return type(self)(self.values.sum(axis=dim, dtype=dtype))

    def copy_(self, other: Tensor, non_blocking: bool = False) -> Tensor:
        if other.is_cuda:
            assert non_blocking, "a copy from the device waits for it"
            assert self.pinned, "a copy into pageable memory waits for the device"
            STREAM.append((self.values, other.values.copy()))
        else:
            self.values[...] = other.values
        return self

    def numpy(self) -> Any:
        return self.values


class DeviceTensor(Tensor):
    """A tensor on a device: what is copied from it is on the host only when an event after the copy was awaited."""

    is_cuda = True
    device = types.SimpleNamespace(type="cuda")

    def numpy(self) -> Any:
        raise AssertionError("a tensor on the device was read by the host")


STREAM: list[tuple[Any, Any]] = []
"""Copies that the stream has not done yet."""


class Event:
    """An event of the stream; ``latency`` is how long the device is behind the host."""

    latency = 0.0
    waited_in: ClassVar[set[str]] = set()

    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "waiting for this event spins"

    def record(self) -> None:
        self._copies = STREAM[:]
        STREAM.clear()

    def synchronize(self) -> None:
        self.waited_in.add(threading.current_thread().name)
        time.sleep(self.latency)
        for host, values in self._copies:
            host[...] = values


@contextmanager
def _inference_mode() -> Iterator[None]:
    yield


def _sum(tensor: Tensor, dim: int, dtype: Any, out: Tensor) -> None:
    np.sum(tensor.values, axis=dim, dtype=dtype, out=out.values)


def _zeros(shape: tuple[int, ...], dtype: Any, device: Any = None, pin_memory: bool = False) -> Tensor:
    values = np.zeros(shape, dtype)
    return DeviceTensor(values) if device is not None and device.type == "cuda" else Tensor(values, pin_memory)


def torch() -> types.ModuleType:
    """Return a module with the functions that the plugin calls."""
    module = types.ModuleType("torch")
    cuda = types.SimpleNamespace(is_current_stream_capturing=lambda: False, Event=Event)
    module.__dict__.update(inference_mode=_inference_mode, sum=_sum, zeros=_zeros, int32=np.int32, cuda=cuda)
    return module


@dataclass
class Group:
    """The place of this rank."""

    rank_in_group: int = 0
    world_size: int = 4


GROUP = Group()


@dataclass
class Layer:
    layer_name: str


@dataclass
class Model:
    moe_layers: list[Layer] = field(default_factory=list)


def install(folder: Path, source: str = SOURCE) -> None:
    """Write a package ``vllm`` whose load balancer is the stand-in, to be imported from ``folder``."""
    package = folder / "vllm" / "distributed" / "eplb"
    package.mkdir(parents=True)
    for path in (folder / "vllm", folder / "vllm" / "distributed", package):
        (path / "__init__.py").write_text("")
    (folder / "vllm" / "__init__.py").write_text("__version__ = '0.33.0'\n")
    (package / "eplb_state.py").write_text(source)


def load() -> Any:
    """Import the load balancer as a worker does."""
    return importlib.import_module("vllm.distributed.eplb.eplb_state")


def forget() -> None:
    """Remove what ``load`` imported, and the hooks of the plugin."""
    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_AfterImport"]


class Engine:
    """One rank: routes random tokens, steps, and knows what every publication must hold."""

    def __init__(
        self, module: Any, *, layers: int = 3, experts: int = 8, window: int = 20, interval: int = 60, seed: int = 0,
        names: tuple[str, ...] = ("moe",), tensor: type[Tensor] = Tensor,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.states = [
            module.EplbModelState(
                expert_load_pass=tensor(np.zeros((layers, experts), np.int32)),
                expert_load_window=tensor(np.zeros((window, layers, experts), np.int32)),
                physical_to_logical_map=tensor(np.tile(np.arange(experts), (layers, 1))),
                model_name=name, model=Model([Layer(f"model.layers.{index + 1}.mlp") for index in range(layers)]))
            for name in names]
        self.state = module.EplbState(window, interval, dict(enumerate(self.states)))
        self.since = [np.zeros((layers, experts), np.int64) for _ in names]
        self.real = self.recorded = 0

    def forward(self, low: int = 0, high: int = 9) -> None:
        """Count as the router does."""
        for state, since in zip(self.states, self.since, strict=True):
            counts = self.random.integers(low, high, state.expert_load_pass.shape)
            if self.state.recording:
                state.expert_load_pass.values += counts.astype(np.int32)
                since += counts

    def step(self, *, dummy: bool = False) -> Any:
        """One pass with a step; what a dummy pass counted is not to be published."""
        before = [since.copy() for since in self.since]
        self.forward()
        if dummy:
            self.since = before
        else:
            self.real += 1
            self.recorded += self.state.recording
        return self.state.step(dummy, False)

    def taken(self) -> list[Any]:
        """Return what was routed since the last call, and forget it."""
        since, self.since = self.since, [np.zeros_like(counts) for counts in self.since]
        self.real = self.recorded = 0
        return since
