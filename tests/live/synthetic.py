"""Expositions of releases that were never captured, put together from the survey of their code.

Names, types and which of them every server has come from the survey; label sets are those of the nearest captures.
"""

from __future__ import annotations

import json

from k3observe.catalogue import Version
from k3observe.catalogue.history import Metric, history

VLLM = {"model_name": "k3"}
SGLANG = {"model_name": "k3", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
TOKENIZER = ("time_to_first", "inter_token", "e2e_", "tokens_total", "requests_total", "per_output", "histogram",
             "num_retractions")  # fmt: skip
EXTRAS: dict[str, list[dict[str, str]]] = {
    "vllm:num_requests_waiting_by_reason": [{"reason": "capacity"}, {"reason": "deferred"}],
    "vllm:engine_sleep_state": [{"sleep_state": s} for s in ("awake", "weights_offloaded", "discard_all")],
    "vllm:prompt_tokens_by_source_total": [{"source": "local_compute"}],
    "vllm:prompt_tokens_cached_by_source_total": [{"source": "device"}],
    "vllm:admission_rejections_total": [{"reason": "max_num_queued_reqs"}],
    "vllm:num_requests_kv_fetch_by_stage": [{"stage": "in_progress"}],
    "sglang:prefill_effective_tokens_total": [{"mode": "input"}, {"mode": "device_hit"}],
    "sglang:realtime_tokens_total": [{"mode": m} for m in ("prefill_compute", "prefill_cache", "decode")],
}
# fields of vLLM's CacheConfig, the first release that has them and the first again without
CONFIG_FIELDS = (
    ("mamba_cache_mode", "0.16.0", ""), ("user_specified_block_size", "0.18.1", ""),
    ("kv_cache_dtype_skip_layers", "0.19.1", ""), ("hash_block_size", "0.20.0", "0.26.0"),
    ("hash_block_size", "0.32.0", ""), ("kv_cache_size_tokens", "0.24.0", ""), ("prefix_match_unit", "0.26.0", ""),
    ("use_replayssm", "0.27.1", ""), ("kv_cache_layout", "0.30.0", ""),
    ("effective_attention_block_size", "0.31.0", ""), ("cache_hit_alignment_tokens", "0.32.0", ""),
    ("simple_cpu_offload_num_blocks", "0.33.0", ""),
)  # fmt: skip


def exposition(
    engine: str, release: str, *, also: tuple[str, ...] = (), without: tuple[str, ...] = (), engines: int = 1,
    rust: bool = False, idle: bool = False, labels: dict[str, str] | None = None,
) -> str:  # fmt: skip
    """A server of that release under load; ``also`` are optional metrics that a flag switched on."""
    table = history(engine)
    assert table is not None
    version = Version.parse(release)
    lines: list[str] = []
    for metric in table.metrics.values():
        there = metric.presence in ("always", "seeded") or (metric.presence == "python" and not rust)
        if not metric.exists(version) or metric.name in without:
            continue
        if (there and metric.visible(version)) or metric.name in also:
            if idle and engine == "sglang" and metric.type != "gauge" and metric.presence != "seeded":
                continue
            lines += _family(metric, version, engines, labels or {}, rust, idle)
    return "\n".join(lines) + ("\n# EOF\n" if rust else "\n")


def _family(metric: Metric, version: Version, engines: int, more: dict[str, str], rust: bool, idle: bool) -> list[str]:
    name = metric.name.removesuffix("_total") if rust and metric.type == "counter" else metric.name
    lines = [f"# TYPE {name} {metric.type}"]
    for number in range(engines):
        for extra in _extras(metric, version):
            lines += _samples(metric, {**_base(metric, version, number), **extra, **more}, idle)
    return lines


def _extras(metric: Metric, version: Version) -> list[dict[str, str]]:
    if metric.name == "vllm:request_success_total":
        reasons = ["stop", "length", "abort"]
        reasons += ["error"] * (version >= Version.parse("0.13.0")) + ["repetition"] * (
            version >= Version.parse("0.17")
        )
        return [{"finished_reason": reason} for reason in reasons]
    if metric.name == "vllm:cache_config_info":
        fields = {"block_size": "64", "num_gpu_blocks": "1000"}
        for field, since, until in CONFIG_FIELDS:
            if Version.parse(since) <= version and not (until and version >= Version.parse(until)):
                fields[field] = "1"
        return [fields]
    if metric.name in EXTRAS:
        return EXTRAS[metric.name]
    return [{label: "x" for label in metric.labels if label not in ("is_streaming", "cache_source")}]


def _base(metric: Metric, version: Version, number: int) -> dict[str, str]:
    if metric.name == "vllm:cache_config_info":
        return {"engine": str(number)} if version >= Version.parse("0.9.0") else {}
    if metric.name.startswith("vllm:"):
        return {**VLLM, "engine": str(number)} if version >= Version.parse("0.8.5") else dict(VLLM)
    if (
        any(part in metric.name for part in TOKENIZER)
        and "realtime" not in metric.name
        and "effective" not in metric.name
    ):
        labels = {"model_name": "k3"}
        if version >= Version.parse("0.5.12"):
            labels["engine_type"] = "unified"
        if version >= Version.parse("0.5.17"):
            labels["is_streaming"] = "true"
        return labels
    labels = {**SGLANG, **({"dp_rank": str(number)} if number else {})}
    return {**labels, "moe_ep_rank": "0"} if version >= Version.parse("0.5.7") else labels


def _samples(metric: Metric, labels: dict[str, str], idle: bool) -> list[str]:
    def line(suffix: str, value: float, **more: str) -> str:
        pairs = ",".join(f"{key}={json.dumps(text)}" for key, text in {**labels, **more}.items())
        return f"{metric.name}{suffix}{{{pairs}}} {value}"

    busy = 0.0 if idle else 1.0
    if metric.type in ("histogram", "summary"):
        buckets = [line("_bucket", 8 * busy, le="1.0"), line("_bucket", 10 * busy, le="+Inf")]
        return [*(buckets if metric.type == "histogram" else []), line("_sum", 5 * busy), line("_count", 10 * busy)]
    if metric.type == "gauge" or metric.type == "unknown":
        return [line("", 0.5 if "usage" in metric.name else 1.0)]
    return [line("", 100.0 * busy)]
