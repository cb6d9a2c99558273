"""Configurations that the dashboards are tested with: each engine alone, and all of them in one stack."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.loader import loads
from k3observe.plan import Plan, plan
from k3observe.render import grafana
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

_NVIDIA = {"kind": "nvidia", "per_node": 8}
_ASCEND = {"kind": "ascend", "per_node": 8}

SERVICES: dict[str, dict[str, Any]] = {
    "vllm": {
        "engine": {"name": "vllm", "version": "0.33", "args": {
            "gpu_memory_utilization": 0.92, "max_num_seqs": 16, "tensor_parallel": 8, "expert_parallel": True,
            "prefix_caching": True, "eplb": True, "kv_offload": True}},
        "model": {"preset": "kimi-k3", "served_name": "kimi-k3"}, "accelerators": _NVIDIA,
        "sidecar": {"collect": ["gpu", "experts", "kv-cache"], "experts": {"source": "plugin"}},
    },
    "sglang": {
        "engine": {"name": "sglang", "version": "0.5.23", "args": {"tensor_parallel": 8, "max_num_seqs": 64}},
        "accelerators": {**_NVIDIA, "source": "dcgm", "targets": ["10.0.2.1:9400"]},
    },
    "vllm-ascend": {
        "engine": {"name": "vllm-ascend", "version": "0.23", "args": {
            "tensor_parallel": 16, "expert_parallel": True, "eplb": True}},
        "accelerators": {**_ASCEND, "source": "npu-exporter", "targets": ["10.0.3.1:8082"]},
        "sidecar": {"collect": ["experts"], "experts": {"source": "log"}},
    },
    "mindie": {
        "engine": {"name": "mindie", "version": "2.0", "args": {"tensor_parallel": 8, "max_num_seqs": 32}},
        "accelerators": _ASCEND, "sidecar": {"collect": ["npu"]},
    },
    "generic": {"engine": {"name": "generic"}},
}  # fmt: skip

ENGINES = (*SERVICES, "all")
LANGUAGES = ("en", "zh-CN")


def document(engine: str, language: str = "en", **changes: Any) -> dict[str, Any]:
    names = list(SERVICES) if engine == "all" else [engine]
    return {
        "version": 1, "stack": "fleet", "language": language, "runbook_base_url": "https://wiki.example.com/k3",
        "grafana_url": "https://grafana.example.com", "identity_labels": ["cluster"] if engine == "all" else [],
        "services": [
            {"name": f"k3-{name}", "targets": [f"10.0.{index}.1:8000", f"10.0.{index}.2:8000"], **SERVICES[name]}
            for index, name in enumerate(names)
        ],
        **changes,
    }  # fmt: skip


def planned(document: dict[str, Any]) -> Plan:
    return plan(loads(to_yaml(document), "k3observe.yaml"), load_catalogue(), load_rules())


def rendered(made: Plan) -> dict[str, dict[str, Any]]:
    """The dashboards of a plan, by name."""
    prefix = f"grafana/dashboards/k3-{made.config.stack}-"
    return {path.removeprefix(prefix).removesuffix(".json"): json.loads(content)
            for path, content in grafana.files(made) if path.startswith(prefix)}  # fmt: skip


@cache
def boards(engine: str, language: str = "en") -> dict[str, dict[str, Any]]:
    return rendered(planned(document(engine, language)))


def everything() -> dict[str, dict[str, Any]]:
    """Every dashboard of every engine in both languages."""
    return {
        f"{engine}_{language}_{name}".replace("-", "_"): board
        for engine in ENGINES for language in LANGUAGES for name, board in boards(engine, language).items()
    }  # fmt: skip
