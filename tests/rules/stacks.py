"""Configurations that between them arm every alert, from every kind of source."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import loads
from k3observe.plan import Plan, plan
from k3observe.rules import load as load_rules

NVIDIA = {"kind": "nvidia", "per_node": 8}
TIMEOUT = {"RequestsTimedOut": {"params": {"timeout": 30}}}


def _service(engine: str, version: str | None, **more: Any) -> dict[str, Any]:
    named = {"name": engine} | ({"version": version} if version else {})
    return {
        "name": engine, "engine": named | {"args": more.pop("args", {})},
        "targets": ["10.0.0.1:8000", "10.0.0.2:8000"], **more,
    }  # fmt: skip


SERVICES: Mapping[str, dict[str, Any]] = {
    "vllm, nvidia by the sidecar": _service(
        "vllm", "0.33",
        args={"gpu_memory_utilization": 0.92, "prefix_caching": True, "data_parallel": 2, "admission_limits": True,
              "eplb": True},
        accelerators=NVIDIA, sidecar={"collect": ["gpu", "experts"], "experts": {"source": "plugin"}}, alerts=TIMEOUT),
    "sglang, nvidia by dcgm": _service(
        "sglang", "0.5.23", args={"balancedness_report": "both"},
        accelerators=NVIDIA | {"source": "dcgm", "targets": ["10.0.0.1:9400"]}),
    "mindie, ascend by npu-exporter": _service(
        "mindie", None, accelerators={"kind": "ascend", "per_node": 16, "source": "npu-exporter",
                                      "targets": ["10.0.0.1:8082"]}),
    "vllm-ascend, ascend by the sidecar": _service(
        "vllm-ascend", "0.13.0", args={"gpu_memory_utilization": 0.97, "eplb": True}, accelerators={"kind": "ascend"},
        sidecar={"collect": ["npu", "experts", "kv-cache"]}, kv_source="sidecar"),
    "generic, nvidia by dcgm": _service(
        "generic", None, accelerators={"kind": "nvidia", "per_node": 16, "source": "dcgm",
                                       "targets": ["10.0.0.1:9400"]}),
}  # fmt: skip


def stack(service: str = "vllm, nvidia by the sidecar", **more: Any) -> dict[str, Any]:
    """A configuration with one of the services; ``more`` are fields of the service."""
    return {"version": 1, "stack": "k3", "services": [copy.deepcopy(SERVICES[service]) | more]}


def planned(document: dict[str, Any]) -> Plan:
    return plan(loads(json.dumps(document)), load_catalogue([]), load_rules())
