"""Recording rules of a capture evaluated by promtool, and what they must give, added up by hand from its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from k3observe.catalogue import Catalogue, Entry, Signal, Version
from k3observe.catalogue.expression import Spelling, recording, spelled

from .conftest import Captured

TARGET = {"stack": "s", "service": "svc", "role": "unified", "job": "k3-engine", "instance": "i:1"}
BY = ("stack", "service", "role")
SERVICE = {name: TARGET[name] for name in BY}
Values = dict[tuple[tuple[str, str], ...], float]


def entries(catalogue: Catalogue, capture: Captured) -> Iterator[tuple[Signal, Entry]]:
    """Every signal the capture has, with its entry."""
    for signal in catalogue.signals.values():
        for entry in catalogue.candidates(capture.engine, signal.name, capture.version):
            if any(term.sample in capture.samples for term in entry.terms):
                yield signal, entry
                break


def grows(capture: Captured, sample: str) -> bool:
    """Samples of histograms and summaries are fed as counters that grow by their captured value every minute."""
    for suffix in ("_bucket", "_sum", "_count"):
        if capture.types.get(sample.removesuffix(suffix)) in ("histogram", "summary"):
            return True
    return False


def input_series(capture: Captured, names: set[str], spelling: Spelling) -> list[dict[str, str]]:
    found = []
    for sample, rows in capture.samples.items():
        if not any(sample == name or sample.startswith(name + "_") for name in names):
            continue
        for labels, value in rows:
            if math.isnan(value) or sample.endswith("_created"):
                continue
            pairs = ",".join(f'{key}="{text}"' for key, text in {**labels, **TARGET}.items())
            values = f"0+{value}x10" if grows(capture, sample) else f"{value}+0x10"
            found.append({"series": f"{spelled(sample, spelling)}{{{pairs}}}", "values": values})
    return found


def write_test(
    folder: Path, catalogue: Catalogue, capture: Captured, spelling: Spelling, wanted: Mapping[str, Values]
) -> Path:
    """A promtool test in which each recorded series of ``wanted`` must have exactly these values (by labels)."""
    rules, names = [], set()
    for signal, entry in entries(catalogue, capture):
        rules += [
            {"record": record, "expr": expr} for record, expr in recording(signal, entry, {"job": "k3-engine"}, BY)
        ]
        names |= set(entry.metrics)
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    queries = []
    for record, values in wanted.items():
        samples = [
            {"labels": "{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}", "value": round(value, 6)}
            for labels, value in values.items()
        ]
        queries.append({"expr": f"round({record}, 0.000001)", "eval_time": "10m", "exp_samples": samples})
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "1m", "input_series": input_series(capture, names, spelling), "promql_expr_test": queries}
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test, allow_unicode=True))
    return path


Rows = Callable[[str], list[tuple[dict[str, str], float]]]


def by_hand(capture: Captured) -> dict[str, Values]:
    """Recorded series and values of the important signals, with raw names and label rules written out here."""

    def rows(name: str) -> list[tuple[dict[str, str], float]]:
        return capture.samples.get(name, [])

    if capture.engine == "vllm":
        return _vllm(rows, capture.version)
    return _sglang(rows, capture.version) if capture.engine == "sglang" else _mindie(rows)


def _key(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({**SERVICE, **{k: v for k, v in labels.items() if v}}.items()))


def _summed(rows: list[tuple[dict[str, str], float]], labels: Callable[[dict[str, str]], dict[str, str]]) -> Values:
    found: Values = {}
    for own, value in rows:
        key = _key(instance="i:1", **labels(own))
        found[key] = found.get(key, 0.0) + value
    return found


def _pooled(rows: Rows, raw: str, record: str) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for suffix in ("_bucket", "_sum", "_count"):
        values: Values = {}
        for labels, value in rows(raw + suffix):
            key = _key(le=labels["le"]) if suffix == "_bucket" else _key()
            values[key] = values.get(key, 0.0) + value / 60
        if values:
            found[f"{record}{suffix}:rate5m"] = values
    return found


def _vllm(rows: Rows, version: Version) -> dict[str, Values]:
    def engine(labels: dict[str, str]) -> dict[str, str]:
        return {"engine": labels.get("engine", "0"), "model_name": labels["model_name"]}

    def only(name: str, label: str, value: str) -> list[tuple[dict[str, str], float]]:
        return [row for row in rows(name) if row[0][label] == value]

    new = version >= Version.parse("0.9.2")
    split = version >= Version.parse("0.20.2")
    waiting = (
        only("vllm:num_requests_waiting_by_reason", "reason", "capacity")
        if split
        else rows("vllm:num_requests_waiting")
    )
    found = {
        "k3:kv_cache_usage:ratio": _summed(
            rows("vllm:kv_cache_usage_perc" if new else "vllm:gpu_cache_usage_perc"), engine
        ),
        "k3:requests_running:count": _summed(rows("vllm:num_requests_running"), engine),
        "k3:requests_waiting:count": _summed(waiting, engine),
        "k3:requests_finished:total": _summed(rows("vllm:request_success_total"), engine),
        "k3:requests_aborted:total": _summed(only("vllm:request_success_total", "finished_reason", "abort"), engine),
        "k3:preemptions:total": _summed(
            rows("vllm:num_preemptions_total"), lambda labels: {"engine": labels.get("engine", "0")}
        ),
        "k3:prompt_tokens:total": _summed(rows("vllm:prompt_tokens_total"), engine),
        "k3:generated_tokens:total": _summed(rows("vllm:generation_tokens_total"), engine),
    }
    if new or version >= Version.parse("0.8"):
        prefix = "vllm:prefix" if new else "vllm:gpu_prefix"
        size = 1.0 if new else float(rows("vllm:cache_config_info")[0][0]["block_size"])
        queries = _summed(rows(prefix + "_cache_queries_total"), engine)
        found["k3:kv_cache_queries:total"] = {key: value * size for key, value in queries.items()}
        hits = _summed(rows(prefix + "_cache_hits_total"), lambda labels: {**engine(labels), "tier": "device"})
        external = _summed(
            rows("vllm:external_prefix_cache_hits_total"), lambda labels: {**engine(labels), "tier": "external"}
        )
        found["k3:kv_cache_hits:total"] = {key: value * size for key, value in {**hits, **external}.items()}
    if version >= Version.parse("0.11.1"):
        asleep = only("vllm:engine_sleep_state", "sleep_state", "awake")
        found["k3:engine_sleeping:bool"] = {
            _key(instance="i:1", engine=labels["engine"]): 1.0 - value for labels, value in asleep
        }
    token = "inter_token_latency" if version >= Version.parse("0.10.2") else "time_per_output_token"
    found |= _pooled(rows, "vllm:time_to_first_token_seconds", "k3:time_to_first_token_seconds")
    found |= _pooled(rows, f"vllm:{token}_seconds", "k3:inter_token_latency_seconds")
    found |= _pooled(rows, "vllm:e2e_request_latency_seconds", "k3:request_latency_seconds")
    return found | _pooled(rows, "vllm:request_queue_time_seconds", "k3:queue_time_seconds")


def _sglang(rows: Rows, version: Version) -> dict[str, Values]:
    def live(name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """One series per dp_rank: the largest over its ranks, by what else tells them apart."""
        best: dict[tuple[str, str], tuple[dict[str, str], float]] = {}
        for own, value in rows(name):
            if all(own.get(k, "") == v for k, v in labels.items()):
                key = (own.get("dp_rank", "0"), own.get("mode", ""))
                if key not in best or value > best[key][1]:
                    best[key] = (own, value)
        return list(best.values())

    def engine(labels: dict[str, str]) -> dict[str, str]:
        return {"engine": labels.get("dp_rank", "0"), "model_name": labels["model_name"]}

    found = {
        "k3:kv_cache_usage:ratio": _summed(live("sglang:token_usage"), engine),
        "k3:requests_running:count": _summed(live("sglang:num_running_reqs"), engine),
        "k3:requests_waiting:count": _summed(live("sglang:num_queue_reqs"), engine),
        "k3:requests_finished:total": _summed(rows("sglang:num_requests_total"), engine),
        "k3:requests_aborted:total": _summed(rows("sglang:num_aborted_requests_total"), engine),
        "k3:prompt_tokens:total": _summed(rows("sglang:prompt_tokens_total"), engine),
        "k3:generated_tokens:total": _summed(rows("sglang:generation_tokens_total"), engine),
    }
    if version >= Version.parse("0.5.18"):
        tokens = live("sglang:prefill_effective_tokens_total")
        hit = [row for row in tokens if row[0]["mode"].endswith("_hit")]
        found["k3:kv_cache_queries:total"] = _summed(tokens, engine)
        found["k3:kv_cache_hits:total"] = _summed(
            hit, lambda labels: {**engine(labels), "tier": labels["mode"].removesuffix("_hit")}
        )
    if version >= Version.parse("0.5.7"):
        found["k3:preemptions:total"] = _summed(
            live("sglang:num_retracted_requests_total"), lambda labels: {"engine": labels.get("dp_rank", "0")}
        )
        found |= _pooled(rows, "sglang:queue_time_seconds", "k3:queue_time_seconds")
    balance: Values = {}
    for phase, modes in (("all", ("extend", "decode")), ("decode", ("decode",)), ("prefill", ("extend",))):
        total = [
            sum(value for labels, value in rows("sglang:eplb_balancedness" + suffix) if labels["forward_mode"] in modes)
            for suffix in ("_sum", "_count")
        ]
        if total[1]:
            balance[_key(model_name="moonshotai/Kimi-K3", scope="rank", phase=phase, formula="mean_of_passes")] = (
                total[0] / total[1]
            )
    if balance:
        found["k3:expert_balance:ratio"] = balance
    found |= _pooled(rows, "sglang:time_to_first_token_seconds", "k3:time_to_first_token_seconds")
    found |= _pooled(rows, "sglang:inter_token_latency_seconds", "k3:inter_token_latency_seconds")
    return found | _pooled(rows, "sglang:e2e_request_latency_seconds", "k3:request_latency_seconds")


def _mindie(rows: Rows) -> dict[str, Values]:
    def engine(labels: dict[str, str]) -> dict[str, str]:
        return {"engine": "0", "model_name": labels["model_name"]}

    return {
        "k3:kv_cache_usage:ratio": _summed(rows("npu_cache_usage_perc"), engine),
        "k3:kv_cache_queries:total": _summed(rows("all_radix_match_num"), engine),
        "k3:kv_cache_hits:total": _summed(
            rows("npu_radix_match_hit_num"), lambda labels: {**engine(labels), "tier": "device"}
        ),
        "k3:requests_running:count": _summed(rows("num_requests_running"), engine),
        "k3:requests_finished:total": _summed(rows("request_success_total") + rows("request_failed_total"), engine),
        "k3:requests_failed:total": _summed(rows("request_failed_total"), engine),
        **_pooled(rows, "time_to_first_token_seconds", "k3:time_to_first_token_seconds"),
        **_pooled(rows, "time_per_output_token_seconds", "k3:inter_token_latency_seconds"),
    }
