"""What vLLM's load balancer needs and a CPU has not: streams and timed events, process groups, a model of experts."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

WORLD, LAYERS, LOGICAL, REPLICAS = 4, 6, 16, 4
PHYSICAL = LOGICAL + REPLICAS
LOCAL = PHYSICAL // WORLD


class Event:
    """A CUDA event where nothing runs asynchronously."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def wait(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, _: Any) -> float:
        return 0.0


class Stream:
    """A CUDA stream where nothing runs asynchronously."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> None: ...
    def wait_event(self, _: Any) -> None: ...


@contextlib.contextmanager
def _on_stream(*_: Any) -> Any:
    yield


def without_cuda(torch: Any) -> None:
    """Replace what exists only with a device, in torch and where vLLM has taken a name of it."""
    torch.Event = torch.cuda.Event = Event
    torch.cuda.Stream = Stream
    torch.cuda.stream = _on_stream
    torch.cuda.current_stream = torch.accelerator.current_stream = lambda *_, **__: Stream()
    torch.cuda.synchronize = torch.accelerator.synchronize = lambda *_: None
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.distributed.eplb."):
            if hasattr(module, "device_stream"):
                vars(module)["device_stream"] = _on_stream
            if hasattr(module, "PIN_MEMORY"):
                vars(module)["PIN_MEMORY"] = False


def missing_groups(groups: Any, rank: int) -> None:
    """Make those groups that vLLM makes only for its own MoE models."""
    import torch.distributed as dist

    for name in ("_EP", "_EPLB"):
        if getattr(groups, name, None) is None:
            group = dist.new_group(list(range(WORLD)), backend="gloo")
            setattr(groups, name, types.SimpleNamespace(
                device_group=group, cpu_group=group, rank_in_group=rank, rank=rank, world_size=WORLD,
                device_communicator=None))


def small_model(eplb: Any, rank: int) -> Any:
    """A model whose first layer is dense, its experts placed as vLLM does at its start."""
    import torch
    from vllm.model_executor.models.interfaces import MixtureOfExperts

    layer_state = getattr(eplb, "EplbLayerState", None)
    first = (list(range(LOGICAL)) + list(range(REPLICAS)))[rank * LOCAL : (rank + 1) * LOCAL]

    class Layer:
        """An expert's weights are its logical number, so that moves can be checked."""

        def __init__(self, index: int) -> None:
            self.layer_name = f"model.layers.{index + 1}.mlp.experts"
            self.eplb_state: Any = layer_state() if layer_state else None
            self.weights = torch.tensor(first, dtype=torch.float32)[:, None].repeat(1, 8) + 100 * index

        def get_expert_weights(self) -> list[Any]:
            return [self.weights]

        def set_eplb_state(
            self, moe_layer_idx: int, expert_load_view: Any, logical_to_physical_map: Any,
            logical_replica_count: Any,
        ) -> None:
            self.view = expert_load_view[moe_layer_idx]
            self.slots = logical_to_physical_map[moe_layer_idx]
            self.replicas = logical_replica_count[moe_layer_idx]
            if hasattr(self.eplb_state, "set_layer_state"):
                self.eplb_state.set_layer_state(
                    moe_layer_idx, expert_load_view, logical_to_physical_map, logical_replica_count)
            elif self.eplb_state is not None:
                self.eplb_state.expert_load_view = self.view
                self.eplb_state.logical_to_physical_map = self.slots
                self.eplb_state.logical_replica_count = self.replicas

    class Model(MixtureOfExperts):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_moe_layers, self.num_expert_groups = LAYERS, 1
            self.num_logical_experts = self.num_routed_experts = LOGICAL
            self.num_physical_experts, self.num_local_physical_experts = PHYSICAL, LOCAL
            self.num_redundant_experts, self.num_shared_experts = REPLICAS, 0
            self.moe_layers = [Layer(index) for index in range(LAYERS)]
            self.expert_weights: list[Any] = []

    return Model()
