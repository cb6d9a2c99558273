"""What is known of a service: its flags, the engine's defaults and what follows from both.

Facts are what the catalogue's ``when`` and the rules' expressions may ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from k3observe.catalogue.version import Version
from k3observe.config.model import Service
from k3observe.config.values import Duration
from k3observe.expert_source import lack

# vLLM: --max-num-seqs 256, and 1024 on GPUs of 70 GiB and more (no A100), where the KV cache limits a large model
# first; MindIE: maxBatchSize 200; SGLang works its limit out from memory, 64 is a cautious guess
_MAX_NUM_SEQS = {"vllm": 256, "vllm-ascend": 256, "mindie": 200, "sglang": 64}
# vLLM: --gpu-memory-utilization 0.92 from 0.20 on, 0.9 before; SGLang and MindIE take nearly all that the model leaves
_RESERVED = {"vllm": 0.92, "vllm-ascend": 0.92, "sglang": 0.88, "mindie": 0.9}
_RESERVED_OLD = {**_RESERVED, "vllm": 0.9, "vllm-ascend": 0.9}


ASCEND_ENGINES = frozenset({"vllm-ascend", "mindie"})
"""Engines that run on Ascend alone."""


class Objective(NamedTuple):
    """A quantile of a latency, and the seconds it must stay under."""

    quantile: float
    seconds: float


def facts(service: Service) -> Mapping[str, Any]:
    """Return the facts of a service, by name."""
    engine, args, model = service.engine, service.engine.args, service.model.known
    known: dict[str, Any] = {"engine": engine.name, **args.model_dump()}
    reserved = _RESERVED if _since(service, "0.20.0") else _RESERVED_OLD
    for name, defaults in (("max_num_seqs", _MAX_NUM_SEQS), ("gpu_memory_utilization", reserved)):
        known[f"{name}_given"] = known[name] is not None
        if known[name] is None:
            known[name] = defaults.get(engine.name)
    accelerators = service.accelerators
    known.update(
        prefix_caching=_prefix_caching(service),
        expert_parallel=args.expert_parallel or (args.expert_parallel_size or 1) > 1,
        expert_parallel_size=_expert_ranks(service),
        role=service.role,
        model_name=service.model.served_name or service.name,
        moe_layers=model.moe_layers,
        experts=model.experts,
        top_k=model.top_k,
        startup_grace=service.model.startup_grace or model.startup_grace,
        replicas_expected=service.replicas.min or service.replicas.expected or len(service.targets) or None,
        kv_source=service.kv_source,
        accelerator=accelerators.kind if accelerators else None,
        accelerator_source=accelerators.source if accelerators else None,
        accelerators_per_node=accelerators.per_node if accelerators else None,
        hot=accelerators.hot if accelerators else None,
    )
    for latency in ("time_to_first_token", "inter_token_latency", "queue_time"):
        known[f"slo.{latency}"] = _objective(getattr(service.slo, latency))
    known["slo.errors"], known["slo.objective"] = service.slo.errors, service.slo.objective
    known["sidecar.collect"] = frozenset(service.sidecar.collect)
    experts = "experts" in service.sidecar.collect
    known["experts.source"] = service.sidecar.experts.source if experts else None
    known["experts.readings"] = experts if (lacks := lack(service)) is None or not experts else lacks
    return MappingProxyType(known)


def grace(service: Service) -> Duration:
    """How long the engine may load before it counts as down."""
    return service.model.known.startup_grace


def _objective(given: Mapping[str, float]) -> Objective | None:
    """The highest quantile that the configuration sets a limit for."""
    found = [Objective(int(name[1:]) / 100, seconds) for name, seconds in given.items()]
    return max(found, default=None)


def _prefix_caching(service: Service) -> bool:
    """The flag, else the engine's default: on in SGLang, in vLLM since 0.8 (V1), for recurrent state since 0.26."""
    if service.engine.args.prefix_caching is not None:
        return service.engine.args.prefix_caching
    name = service.engine.name
    if name in ("vllm", "vllm-ascend"):
        return _since(service, "0.26.0" if service.model.known.recurrent else "0.8.0")
    return name == "sglang"


def _since(service: Service, release: str) -> bool:
    """True from this release of the engine on, and where the version is not told: then it is the newest."""
    version = service.engine.version
    return version is None or Version.parse(version) >= Version.parse(release)


def _expert_ranks(service: Service) -> int | None:
    args = service.engine.args
    if args.expert_parallel_size:
        return args.expert_parallel_size
    # with --enable-dp-attention SGLang divides the ranks of tensor parallelism, where vLLM multiplies them
    replicas = 1 if args.dp_attention else args.data_parallel
    return args.tensor_parallel * replicas if args.expert_parallel else None
