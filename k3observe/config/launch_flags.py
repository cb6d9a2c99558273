"""The flags of each engine that change what is watched: vLLM 0.6 to 0.33, SGLang 0.4 to 0.5, MindIE's service start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def _count(text: str) -> int:
    """Numbers as engines take them: 131072, 128k (decimal), 128K (binary), 1m, 1M."""
    text = re.sub(r"(?<=\d)_(?=\d)", "", text)
    match = re.fullmatch(r"(\d{1,9})|(\d{1,6}(?:\.\d{1,6})?)([kKmM])", text)
    if not match:
        raise ValueError("is no number")
    scale = {None: 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[match[3]]
    return int(match[1]) if match[1] else int(float(match[2]) * scale)


def _integer(text: str) -> int:
    value = _count(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError("is no share between 0 and 1")
    return value


Flags = Mapping[str, tuple[str, Callable[[str], Any] | bool | str]]
"""Flag -> (field of engine.args, how to read its value, or what a flag without one says)."""

_VLLM: Flags = {
    "--tensor-parallel-size": ("tensor_parallel", _integer),
    "-tp": ("tensor_parallel", _integer),
    "--pipeline-parallel-size": ("pipeline_parallel", _integer),
    "-pp": ("pipeline_parallel", _integer),
    "--data-parallel-size": ("data_parallel", _integer),
    "-dp": ("data_parallel", _integer),
    "--enable-expert-parallel": ("expert_parallel", True),
    "-ep": ("expert_parallel", True),
    "--no-enable-expert-parallel": ("expert_parallel", False),
    "--enable-eplb": ("eplb", True),
    "--no-enable-eplb": ("eplb", False),
    "--eplb-log-balancedness": ("eplb_log_balancedness", True),
    "--num-redundant-experts": ("num_redundant_experts", _count),
    "--gpu-memory-utilization": ("gpu_memory_utilization", _fraction),
    "--max-num-seqs": ("max_num_seqs", _integer),
    "--max-model-len": ("max_model_len", _integer),
    "--enable-prefix-caching": ("prefix_caching", True),
    "--no-enable-prefix-caching": ("prefix_caching", False),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--quantization": ("quantization", str),
    "-q": ("quantization", str),
    "--block-size": ("block_size", _integer),
    "--api-server-count": ("api_servers", _integer),
    "-asc": ("api_servers", _integer),
    "--max-num-queued-reqs": ("admission_limits", lambda text: True),
    "--max-num-queued-tokens": ("admission_limits", lambda text: True),
    "--disable-log-stats": ("enable_metrics", False),
    "--kv-offloading-size": ("kv_offload", lambda text: True),
}
_SGLANG: Flags = {
    "--tp": ("tensor_parallel", _integer),
    "--tp-size": ("tensor_parallel", _integer),
    "--tensor-parallel-size": ("tensor_parallel", _integer),
    "--pp-size": ("pipeline_parallel", _integer),
    "--pipeline-parallel-size": ("pipeline_parallel", _integer),
    "--dp": ("data_parallel", _integer),
    "--dp-size": ("data_parallel", _integer),
    "--data-parallel-size": ("data_parallel", _integer),
    "--enable-dp-attention": ("dp_attention", True),
    "--ep": ("expert_parallel_size", _integer),
    "--ep-size": ("expert_parallel_size", _integer),
    "--expert-parallel-size": ("expert_parallel_size", _integer),
    "--enable-eplb": ("eplb", True),
    "--ep-num-redundant-experts": ("num_redundant_experts", _count),
    "--mem-fraction-static": ("gpu_memory_utilization", _fraction),
    "--max-running-requests": ("max_num_seqs", _integer),
    "--context-length": ("max_model_len", _integer),
    "--disable-radix-cache": ("prefix_caching", False),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
    "--quantization": ("quantization", str),
    "--page-size": ("block_size", _integer),
    "--enable-metrics": ("enable_metrics", True),
    "--expert-balancedness-report-mode": ("balancedness_report", str),
    "--enable-expert-distribution-metrics": ("balancedness_report", "server_log"),
    "--enable-hierarchical-cache": ("kv_offload", True),
    "--enable-hicache": ("kv_offload", True),
    "--enable-ep-moe": ("expert_parallel", True),
    "--enable-deepep-moe": ("expert_parallel", True),
}
_MINDIE: Flags = {
    "--data-parallel-size": ("data_parallel", _integer),
    "--expert-parallel-size": ("expert_parallel_size", _integer),
    "--enable-prefix-caching": ("prefix_caching", True),
    "--tensor-parallel-size": ("tensor_parallel", _integer),
    "--world-size": ("tensor_parallel", _integer),
    "--max-batch-size": ("max_num_seqs", _integer),
    "--max-seq-length": ("max_model_len", _integer),
    "--max-seq-len": ("max_model_len", _integer),
}
FLAGS: Mapping[str, Flags] = {"vllm": _VLLM, "vllm-ascend": _VLLM, "sglang": _SGLANG, "mindie": _MINDIE}
FOREIGN: Flags = {**_MINDIE, **_SGLANG, **_VLLM, "--expert-parallel-size": ("expert_parallel_size", _integer)}
"""All of them: a flag of another engine is carried over by its meaning."""
PORTS = {"vllm": 8000, "vllm-ascend": 8000, "sglang": 30000, "mindie": 1027, "generic": 8000}
"""Where each engine serves its metrics if it is told nothing else."""
