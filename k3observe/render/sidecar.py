"""The command line of the sidecar for a service, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from k3observe.config.model import Service
from k3observe.plan import Plan

LOG_ENGINES = ("vllm", "sglang", "vllm-ascend")
"""Engines whose log lines tell expert balance."""

HOTTEST = 10
"""The experts with the most tokens that a source which counts each of them tells of."""


@dataclass(frozen=True)
class Place:
    """What the sidecar finds where it runs: the engine's host and port, its log, the plugin's directory, npu-smi."""

    host: str
    port: int | None
    log: str
    plugin_dir: str = "/run/k3observe-experts"
    npu_smi: str = "/usr/local/bin/npu-smi"


def flags(plan: Plan, service: Service, collect: Sequence[str], place: Place) -> list[str]:
    """The flags, in the order of the collectors."""
    facts = plan.facts[service.name]
    found = [f"--collect={','.join(collect)}", f"--web.listen-address=:{service.sidecar.port}"]
    expected = facts["accelerators_per_node"]
    if "gpu" in collect and expected:
        found.append(f"--gpu.expected={expected}")
    if "npu" in collect:
        found.append(f"--npu.smi-path={place.npu_smi}")
        found += [f"--npu.expected={expected}"] if expected else []
    if "experts" in collect:
        found += _experts(plan, service, place)
        if "gpu" in collect and expected and expected == facts["expert_parallel_size"]:
            # the group fills the node: engines number their ranks as the node its devices
            found += [f"--experts.rank-device={rank}={rank}" for rank in range(expected)]
    if "kv-cache" in collect:
        found.append(f"--kv-cache.url={_metrics(plan, service, place)}")
        if service.tls_ca_file:
            found.append(f"--kv-cache.ca-file={service.tls_ca_file}")
    return found


def _experts(plan: Plan, service: Service, place: Place) -> Iterator[str]:
    facts, experts, name = plan.facts[service.name], service.sidecar.experts, service.engine.name
    yield f"--experts.source={experts.source}"
    if experts.source == "log":
        yield f"--experts.log-file={experts.path or place.log}"
        if name in LOG_ENGINES:
            yield f"--experts.engine={name}"
            if service.engine.version:
                yield f"--experts.engine-version={service.engine.version.removeprefix('v')}"
    elif experts.source == "metrics":
        yield f"--experts.metrics-url={experts.url or _metrics(plan, service, place)}"
    elif experts.source == "file":
        yield f"--experts.file={experts.path}"
    elif experts.source == "http":
        yield f"--experts.http-url={experts.url}"
    else:
        yield f"--experts.plugin-dir={experts.path or place.plugin_dir}"
    if experts.source != "log":
        yield "--experts.layers"
    if experts.source in ("file", "http", "plugin"):
        yield f"--experts.top={HOTTEST}"
    yield f"--experts.model-name={facts['model_name']}"
    if experts.source == "log" and facts["moe_layers"]:
        yield f"--experts.moe-layers={facts['moe_layers']}"
    if facts["expert_parallel_size"]:
        yield f"--experts.ranks={facts['expert_parallel_size']}"


def _metrics(plan: Plan, service: Service, place: Place) -> str:
    path = service.metrics_path or plan.catalogue.sources[service.engine.name].metrics_path
    return f"{service.scheme or 'http'}://{place.host}:{place.port}{path}"
