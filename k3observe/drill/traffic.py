"""The traffic of a replayed engine: counters, histograms and gauges that agree with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.drill.advance import Replay, UnknownSeriesError


@dataclass(frozen=True)
class Load:
    """Traffic of one engine: requests a second, their lengths, and how full its cache is."""

    requests: float = 4.0
    prompt: float = 2000.0
    output: float = 300.0
    first_token: float = 0.8
    between_tokens: float = 0.03
    running: float = 12.0
    waiting: float = 0.0
    cache: float = 0.55
    hits: float = 0.9
    failed: float = 0.0
    """Shares of requests that end so."""
    aborted: float = 0.01
    preempted: float = 0.0
    """Preemptions a second."""


def traffic(replay: Replay, engine: str, load: Load) -> None:
    """Let an engine serve so much; ``engine`` is vllm, sglang or mindie."""
    prompt, output = load.requests * load.prompt, load.requests * load.output
    rates, gauges, times = _TRAFFIC[engine](load, prompt, output)
    for name, labels, rate in rates:
        _known(replay.set_rate, name, rate, labels)
    for name, labels, value in gauges:
        _known(replay.set_gauge, name, value, labels)
    for name, seconds, per_second in times:
        _known(replay.observe, name, {seconds * 0.5: per_second * 0.7, seconds: per_second * 0.25,
                                      seconds * 2: per_second * 0.05}, {})  # fmt: skip


def _known(change: Any, name: str, value: Any, labels: Mapping[str, str]) -> None:
    """Change a series that this exposition may lack: a replayed engine has only what its version has."""
    try:
        change(name, value, labels)
    except UnknownSeriesError:
        return


_Values = list[tuple[str, dict[str, str], float]]
_Rows = tuple[_Values, _Values, list[tuple[str, float, float]]]


def _times(load: Load, prefix: str, output: float) -> list[tuple[str, float, float]]:
    whole = load.first_token + load.between_tokens * load.output
    return [
        (f"{prefix}time_to_first_token_seconds", load.first_token, load.requests),
        (f"{prefix}inter_token_latency_seconds", load.between_tokens, output),
        (f"{prefix}time_per_output_token_seconds", load.between_tokens, output),
        (f"{prefix}e2e_request_latency_seconds", whole, load.requests),
        (f"{prefix}request_queue_time_seconds", load.first_token / 10, load.requests),
        (f"{prefix}queue_time_seconds", load.first_token / 10, load.requests),
        (f"{prefix}request_prefill_time_seconds", load.first_token / 2, load.requests),
        (f"{prefix}request_decode_time_seconds", whole - load.first_token, load.requests),
        (f"{prefix}request_prompt_tokens", load.prompt, load.requests),
        (f"{prefix}request_generation_tokens", load.output, load.requests),
    ]


def _vllm(load: Load, prompt: float, output: float) -> _Rows:
    rates: _Values = [
        ("vllm:prompt_tokens_total", {}, prompt),
        ("vllm:generation_tokens_total", {}, output),
        ("vllm:prefix_cache_queries_total", {}, prompt),
        ("vllm:prefix_cache_hits_total", {}, prompt * load.hits),
        ("vllm:num_preemptions_total", {}, load.preempted),
        ("vllm:request_success_total", {"finished_reason": "error"}, load.requests * load.failed),
        ("vllm:request_success_total", {"finished_reason": "abort"}, load.requests * load.aborted),
        ("vllm:request_success_total", {"finished_reason": "stop"},
         load.requests * (0.95 - load.failed - load.aborted)),
        ("vllm:request_success_total", {"finished_reason": "length"}, load.requests * 0.05),
    ]
    gauges: _Values = [
        ("vllm:num_requests_running", {}, load.running),
        ("vllm:num_requests_waiting", {}, load.waiting),
        ("vllm:num_requests_waiting_by_reason", {"reason": "capacity"}, load.waiting),
        ("vllm:kv_cache_usage_perc", {}, load.cache),
    ]
    return rates, gauges, _times(load, "vllm:", output)


def _sglang(load: Load, prompt: float, output: float) -> _Rows:
    rates: _Values = [
        ("sglang:prompt_tokens_total", {}, prompt),
        ("sglang:generation_tokens_total", {}, output),
        ("sglang:num_requests_total", {}, load.requests),
        ("sglang:prefill_effective_tokens_total", {"mode": "input", "tp_rank": "0"}, prompt * (1 - load.hits)),
        ("sglang:prefill_effective_tokens_total", {"mode": "device_hit", "tp_rank": "0"}, prompt * load.hits),
        ("sglang:cached_tokens_total", {}, prompt * load.hits),
    ]
    gauges: _Values = [
        ("sglang:num_running_reqs", {}, load.running),
        ("sglang:num_queue_reqs", {}, load.waiting),
        ("sglang:token_usage", {}, load.cache),
        ("sglang:gen_throughput", {}, output),
    ]
    return rates, gauges, _times(load, "sglang:", output)


def _mindie(load: Load, prompt: float, output: float) -> _Rows:
    rates: _Values = [
        ("request_received_total", {}, load.requests),
        ("request_success_total", {}, load.requests),
        ("prompt_tokens_total", {}, prompt),
        ("generation_tokens_total", {}, output),
    ]
    gauges: _Values = [
        ("num_requests_running", {}, load.running),
        ("num_requests_waiting", {}, load.waiting),
        ("npu_cache_usage_perc", {}, load.cache),
        ("npu_prefix_cache_hit_rate", {}, load.hits),
    ]
    return rates, gauges, _times(load, "", output)


_TRAFFIC = {"vllm": _vllm, "sglang": _sglang, "mindie": _mindie}
