"""What each engine calls the fill of its KV cache and the hits of its prefix cache, reduced to one form.

Which engine and version it is is told by the names that are there, never by a version string. An engine may expose
families that are not in use (at 0) or lack some: what is missing has no reading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from k3observe.exporters.exposition import Sample

MAX_ENGINES = 256
MAX_TIERS = 8
MAX_NAME = 256
ROUNDED_FULL = 1.01
"""A full cache may come out a little above 1: that is 1, and at the worst time to have no reading."""

_VLLM = (
    "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total",
    "vllm:prompt_tokens_cached_by_source_total", "vllm:cache_config_info")
_SGLANG = (
    "sglang:token_usage", "sglang:prefill_effective_tokens_total", "sglang:cached_tokens_total",
    "sglang:prompt_tokens_total", "sglang:inter_token_latency_seconds_count")
_MINDIE = ("npu_cache_usage_perc", "all_radix_match_num", "npu_radix_match_hit_num")
START_TIME = "process_start_time_seconds"

NAMES = (*_VLLM, *_SGLANG, *_MINDIE, START_TIME)
"""Every sample name that is read."""


class EngineReading(NamedTuple):
    """One scheduler (data-parallel rank) as its engine shows it now.

    ``usage`` is 0..1. ``queries`` and ``hits`` (by tier) are the engine's counters in ``unit`` tokens each; None or
    empty where the engine has none. ``unit`` is None when the engine counts blocks of unknown size: then their ratio
    is right and their amount is not.
    """

    model_name: str
    engine: str
    usage: float | None = None
    queries: float | None = None
    hits: tuple[tuple[str, float], ...] = ()
    unit: float | None = 1.0


class EngineReadings(NamedTuple):
    """All schedulers behind one endpoint, and how many values made no sense (a usage of 30, a NaN counter)."""

    engines: tuple[EngineReading, ...]
    implausible: int
    start_time: float | None


Key = tuple[str, str]
Help = Callable[[str], "str | None"]


def normalise(samples: Sequence[Sample], help_of: Help) -> EngineReadings:
    """Return the readings of whatever engine wrote the samples; ``help_of`` gives the HELP text of a family."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    implausible = 0
    for sample in samples:
        if _plausible(sample):
            full = _is_usage(sample) and sample.value > 1
            by_name[sample.name].append(sample._replace(value=1.0) if full else sample)
        elif not _is_silent(sample):
            implausible += 1
    readings = [*_vllm(by_name, help_of), *_sglang(by_name), *_mindie(by_name)]
    start = max((s.value for s in by_name[START_TIME]), default=None)
    return EngineReadings(tuple(readings[:MAX_ENGINES]), implausible + len(readings[MAX_ENGINES:]), start)


def _is_usage(sample: Sample) -> bool:
    return sample.name.endswith(("usage_perc", "token_usage"))


def _plausible(sample: Sample) -> bool:
    if _is_usage(sample):
        return 0 <= sample.value <= ROUNDED_FULL
    return 0 <= sample.value < 2**63


def _is_silent(sample: Sample) -> bool:
    """SGLang's unset gauges are NaN or negative: no reading, and no error."""
    return sample.name == "sglang:token_usage" and not sample.value >= 0


def _label(sample: Sample, name: str, otherwise: str = "") -> str:
    return sample.labels.get(name, otherwise)[:MAX_NAME]


def _model(sample: Sample) -> str:
    return _label(sample, "model_name")


def _vllm(by_name: dict[str, list[Sample]], help_of: Help) -> Iterable[EngineReading]:
    def values(*names: str) -> dict[Key, float]:
        """Values by engine of the first name that is there: 0.9.2 to 0.10.2 have old and new names at once."""
        found = next((by_name[name] for name in names if by_name[name]), [])
        return {(_model(s), _label(s, "engine", "0")): s.value for s in found}

    usage = values("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    queries = values("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
    hits = values("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    external_queries = values("vllm:external_prefix_cache_queries_total")
    external_hits = values("vllm:external_prefix_cache_hits_total")
    by_source: dict[Key, dict[str, float]] = defaultdict(dict)
    for s in by_name["vllm:prompt_tokens_cached_by_source_total"]:
        by_source[_model(s), _label(s, "engine", "0")][_label(s, "source")] = s.value
    unit: float | None = 1.0
    if queries and not by_name["vllm:prefix_cache_queries_total"]:
        unit = _block_size(by_name, help_of)
    for key in sorted({*usage, *queries}):
        tiers: dict[str, float] = {}
        if key in hits:
            tiers["device"] = hits[key]
            sources = {k: v for k, v in by_source[key].items() if k not in ("", "device")}
            if sources:  # vLLM 0.32 on; before, one sum of all that came through a KV connector
                tiers |= {"external" if k == "external_unspecified" else k: v for k, v in sources.items() if v}
            elif external_hits.get(key):
                tiers["external"] = external_hits[key]
        # With local prefix caching off every lookup goes to the connector; with it on only what it missed.
        looked_up = max(queries[key], external_queries.get(key, 0.0)) if key in queries else None
        yield EngineReading(*key, usage.get(key), looked_up, _bounded(tiers), unit)


def _block_size(by_name: dict[str, list[Sample]], help_of: Help) -> float | None:
    """Tokens a count of ``gpu_prefix_cache_*`` stands for: blocks up to vLLM 0.8.5, tokens from 0.9.0 (its HELP)."""
    if "blocks" not in (help_of("vllm:gpu_prefix_cache_queries_total") or ""):
        return 1.0
    sizes = {s.labels.get("block_size", "") for s in by_name["vllm:cache_config_info"]}
    size = sizes.pop() if len(sizes) == 1 else ""
    return float(size) if size.isascii() and size.isdigit() and 0 < int(size) <= 65536 else None


def _sglang(by_name: dict[str, list[Sample]]) -> Iterable[EngineReading]:
    """Ranks of one data-parallel rank repeat its values or are silent at 0: the maximum is the value."""

    def engine(sample: Sample) -> Key:
        return _model(sample), _label(sample, "dp_rank", "0")

    usage: dict[Key, float] = {}
    for s in by_name["sglang:token_usage"]:
        if not s.labels.get("priority"):  # the parts by priority stand beside their total
            usage[engine(s)] = max(usage.get(engine(s), 0.0), s.value)
    modes: dict[Key, dict[str, float]] = defaultdict(dict)
    for s in by_name["sglang:prefill_effective_tokens_total"]:
        mode, counts = _label(s, "mode"), modes[engine(s)]
        counts[mode] = max(counts.get(mode, 0.0), s.value)
    counted: dict[Key, tuple[float | None, tuple[tuple[str, float], ...]]] = {}
    for key, counts in modes.items():  # SGLang 0.5.18 on
        hits = {mode.removesuffix("_hit"): v for mode, v in counts.items() if mode.endswith("_hit")}
        counted[key] = sum(counts.values()), _tiers(hits)
    if not counted:
        counted = _sglang_at_finish(by_name, usage)
    for key in sorted({*usage, *counted}):
        queries, tiers = counted.get(key, (None, ()))
        yield EngineReading(*key, usage.get(key), queries, tiers)


def _sglang_at_finish(
    by_name: dict[str, list[Sample]], usage: dict[Key, float]
) -> dict[Key, tuple[float | None, tuple[tuple[str, float], ...]]]:
    """Lookups and hits as the tokenizer counts them when a request ends; it knows no data-parallel rank.

    With several ranks they stand under the engine ``""``. ``cached_tokens_total`` has no series before the first hit,
    so without it there were no hits, given that this version has it (0.4.4, as the inter-token latency).
    """
    prompt: dict[str, float] = defaultdict(float)
    cached: dict[str, dict[str, float]] = defaultdict(dict)
    for s in by_name["sglang:prompt_tokens_total"]:
        prompt[_model(s)] += s.value  # one series by is_streaming
    for s in by_name["sglang:cached_tokens_total"]:
        tiers, source = cached[_model(s)], _label(s, "cache_source") or "total"
        tiers[source] = tiers.get(source, 0.0) + s.value
    counted: dict[Key, tuple[float | None, tuple[tuple[str, float], ...]]] = {}
    for model, tokens in prompt.items():
        tiers = cached[model]
        if len(tiers) > 1:
            tiers.pop("total", None)
        if not tiers and by_name["sglang:inter_token_latency_seconds_count"]:
            tiers = {"total": 0.0}
        ranks = {engine for name, engine in usage if name == model}
        counted[model, ranks.pop() if len(ranks) == 1 else "" if ranks else "0"] = tokens, _tiers(tiers)
    return counted


def _tiers(hits: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """Sort; a tier that never hit is left out, unless it is the first one."""
    return _bounded({tier: v for tier, v in hits.items() if v or tier in ("device", "total")})


def _bounded(hits: dict[str, float]) -> tuple[tuple[str, float], ...]:
    """Sort; names come from the engine, so that those after the first few are one, ``other``."""
    ordered = sorted(hits.items(), key=lambda tier: (tier[0] not in ("device", "total"), tier))
    few, rest = ordered[: MAX_TIERS - 1], ordered[MAX_TIERS - 1 :]
    return tuple(sorted((*few, ("other", sum(v for _, v in rest))) if len(rest) > 1 else ordered))


def _mindie(by_name: dict[str, list[Sample]]) -> Iterable[EngineReading]:
    usage, queries, hits = ({_model(s): s.value for s in by_name[name]} for name in _MINDIE)
    for model in sorted({*usage, *queries}):
        found = (("device", hits[model]),) if model in hits else ()
        yield EngineReading(model, "0", usage.get(model), queries.get(model), found)
