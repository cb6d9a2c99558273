"""Cases that no capture shows, on the real PromQL engines: parts beside totals, repeated ranks, failed reads, roles."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from k3observe.catalogue import Catalogue, Entry, Version
from k3observe.catalogue.expression import example_histogram, example_series, recording
from k3observe.drill.binaries import Release
from tests.programs import program

BY = ("stack", "service", "role")
TARGET = {"stack": "s", "service": "v", "role": "unified", "instance": "i:1"}
BASE = 'stack="s",service="v",role="unified",instance="i:1"'


def entry_of(catalogue: Catalogue, source: str, signal: str, version: str | None = None, **facts: object) -> Entry:
    found = catalogue.entry(source, signal, Version.parse(version) if version else None, facts)
    assert isinstance(found, Entry), found
    return found


def evaluate(
    folder: Path,
    catalogue: Catalogue,
    entry: Entry,
    series: dict[str, str],
    expected: dict[str, float],
    release: Release = "3.5",
    record: str = "",
) -> None:
    """Check the recorded series ``{labels: value}`` ten minutes in, for raw series ``{series: values}``."""
    signal = catalogue.signals[entry.signal]
    rules = [{"record": name, "expr": expr} for name, expr in recording(signal, entry, 'stack="s"', BY)]
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    samples = [{"labels": f"{record or rules[0]['record']}{{{labels}}}", "value": value}
               for labels, value in expected.items()]  # fmt: skip
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": record or rules[0]["record"], "eval_time": "10m", "exp_samples": samples}],
        }],
    }  # fmt: skip
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    command = [program("promtool", release), "test", "rules", folder / "test.yml"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("release", ["3.5", "2.42"])
def test_two_names_of_one_thing_are_never_added_up(release: Release, catalogue: Catalogue, tmp_path: Path) -> None:
    """vLLM 0.9.2 to 0.10.2 export the old and the new name side by side."""
    series = {
        f'vllm:kv_cache_usage_perc{{{BASE},engine="1",model_name="k3"}}': "0.6x10",
        f'vllm:gpu_cache_usage_perc{{{BASE},engine="1",model_name="k3"}}': "0.6x10",
    }
    evaluate(tmp_path, catalogue, entry_of(catalogue, "vllm", "kv_cache_usage", "0.10.2"), series,
             {f'{BASE},engine="1",model_name="k3"': 0.6}, release)  # fmt: skip


def test_blocks_become_tokens_by_the_block_size_of_each_instance(catalogue: Catalogue, tmp_path: Path) -> None:
    other = BASE.replace("i:1", "i:2")
    series = {
        f'vllm:gpu_prefix_cache_queries_total{{{BASE},engine="0",model_name="k3"}}': "10x10",
        f'vllm:gpu_prefix_cache_queries_total{{{other},engine="0",model_name="k3"}}': "10x10",
        f'vllm:cache_config_info{{{BASE},block_size="64",num_gpu_blocks="100"}}': "1x10",
        f'vllm:cache_config_info{{{other},block_size="16",num_gpu_blocks="100"}}': "1x10",
    }
    evaluate(tmp_path, catalogue, entry_of(catalogue, "vllm", "kv_cache_queries", "0.8.5"), series,
             {f'{BASE},engine="0",model_name="k3"': 640, f'{other},engine="0",model_name="k3"': 160})  # fmt: skip


def test_waiting_for_capacity_is_told_from_deferred_where_the_engine_splits_it(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    other = BASE.replace("i:1", "i:2")
    series = {
        f'vllm:num_requests_waiting{{{BASE},engine="0",model_name="k3"}}': "9x10",
        f'vllm:num_requests_waiting_by_reason{{{BASE},engine="0",model_name="k3",reason="capacity"}}': "2x10",
        f'vllm:num_requests_waiting_by_reason{{{BASE},engine="0",model_name="k3",reason="deferred"}}': "7x10",
        f'vllm_num_requests_waiting{{{other},engine="0",model_name="k3"}}': "5x10",
    }
    evaluate(tmp_path, catalogue, entry_of(catalogue, "vllm", "requests_waiting", "0.33"), series,
             {f'{BASE},engine="0",model_name="k3"': 2, f'{other},engine="0",model_name="k3"': 5})  # fmt: skip


def test_the_parts_by_priority_are_not_added_to_their_total(catalogue: Catalogue, tmp_path: Path) -> None:
    ranks = 'model_name="k3",tp_rank="0",pp_rank="0"'
    series = {
        f'sglang:num_queue_reqs{{{BASE},{ranks},priority=""}}': "7x10",
        f'sglang:num_queue_reqs{{{BASE},{ranks},priority="1"}}': "4x10",
        f'sglang:num_queue_reqs{{{BASE},{ranks},priority="2"}}': "3x10",
    }
    evaluate(tmp_path, catalogue, entry_of(catalogue, "sglang", "requests_waiting", "0.5.23"), series,
             {f'{BASE},engine="0",model_name="k3"': 7})  # fmt: skip


def test_ranks_that_repeat_a_counter_and_silent_ranks_count_once(catalogue: Catalogue, tmp_path: Path) -> None:
    series = {}
    for rank, value in enumerate((40, 40, 0, 0)):
        for mode, share in (("input", 1), ("device_hit", 3)):
            series[f'sglang:prefill_effective_tokens_total{{{BASE},model_name="k3",dp_rank="1",tp_rank="{rank}",'
                   f'moe_ep_rank="{rank}",mode="{mode}"}}'] = f"{value * share}x10"  # fmt: skip
    evaluate(tmp_path, catalogue, entry_of(catalogue, "sglang", "kv_cache_queries", "0.5.23"), series,
             {f'{BASE},engine="1",model_name="k3"': 160})  # fmt: skip
    evaluate(tmp_path, catalogue, entry_of(catalogue, "sglang", "kv_cache_hits", "0.5.23"), series,
             {f'{BASE},engine="1",model_name="k3",tier="device"': 120})  # fmt: skip


def test_a_decode_instance_waits_in_its_preallocation_queue_too(catalogue: Catalogue, tmp_path: Path) -> None:
    series = {}
    for rank in "01":
        labels = f'{BASE},model_name="k3",tp_rank="{rank}",dp_rank="0"'
        series[f"sglang:num_queue_reqs{{{labels}}}"] = "2x10"
        series[f"sglang:num_decode_prealloc_queue_reqs{{{labels}}}"] = "5x10"
    entry = entry_of(catalogue, "sglang", "requests_waiting", "0.5.23", role="decode")
    evaluate(tmp_path, catalogue, entry, series, {f'{BASE},engine="0",model_name="k3"': 7})
    entry = entry_of(catalogue, "sglang", "requests_waiting", "0.5.23", role="prefill")
    evaluate(tmp_path, catalogue, entry, series, {f'{BASE},engine="0",model_name="k3"': 2})


def test_latencies_are_pooled_over_instances_and_streaming(catalogue: Catalogue, tmp_path: Path) -> None:
    series = {}
    for instance in ("i:1", "i:2"):
        for streaming in ("true", "false"):
            labels = BASE.replace("i:1", instance) + f',model_name="k3",is_streaming="{streaming}"'
            series[f'sglang_time_to_first_token_seconds_bucket{{{labels},le="1.0"}}'] = "0+60x10"
    evaluate(tmp_path, catalogue, entry_of(catalogue, "sglang", "time_to_first_token", "0.5.23"), series,
             {'stack="s",service="v",role="unified",le="1.0"': 4}, "2.42")  # fmt: skip


def test_units_of_dcgm_are_converted_and_a_restarted_pod_is_no_second_device(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    device = f'{BASE},gpu="0",UUID="GPU-a",modelName="H200"'
    series = {}
    for pod in ("old", "new"):
        labels = f'{device},exported_pod="{pod}",{"Hostname" if pod == "old" else "hostname"}="n1"'
        series[f"DCGM_FI_DEV_FB_USED{{{labels}}}"] = "1024x10"
        series[f"DCGM_FI_DEV_FB_FREE{{{labels}}}"] = "2048x10"
        series[f"DCGM_FI_DEV_FB_RESERVED{{{labels}}}"] = "1024x10"
        series[f"DCGM_FI_DEV_GPU_UTIL{{{labels}}}"] = "50x10"
    labels = 'stack="s",service="v",role="unified",instance="i:1",vendor="nvidia",device="0",uuid="GPU-a"'
    for signal, value in (("memory_total", 4096 * 2**20), ("memory_used", 2**30), ("utilization", 0.5)):
        evaluate(tmp_path, catalogue, entry_of(catalogue, "dcgm", f"accelerator_{signal}"), series, {labels: value})
    evaluate(tmp_path, catalogue, entry_of(catalogue, "dcgm", "accelerators_visible"), series,
             {f'{BASE},vendor="nvidia"': 1})  # fmt: skip


def test_failed_reads_of_npu_exporter_are_no_values(catalogue: Catalogue, tmp_path: Path) -> None:
    def chip(number: int) -> str:
        return f'{BASE},id="{number}",vdie_id="d{number}",pod_name="p"'

    series = {}
    for number, (used, total, health) in enumerate(((1000, 65536, 1), (-1, 0, -1))):
        series[f"npu_chip_info_hbm_used_memory{{{chip(number)}}}"] = f"{used}x10"
        series[f"npu_chip_info_hbm_total_memory{{{chip(number)}}}"] = f"{total}x10"
        series[f"npu_chip_info_health_status{{{chip(number)}}}"] = f"{health}x10"

    def device(number: int) -> str:
        return f'{BASE},vendor="ascend",device="{number}",uuid="d{number}"'

    for signal, expected in (
        ("memory_used", {device(0): 1000 * 2**20}),
        ("memory_total", {device(0): 65536 * 2**20}),
        ("health", {device(0): 1, device(1): 0}),
    ):
        evaluate(tmp_path, catalogue, entry_of(catalogue, "npu-exporter", f"accelerator_{signal}"), series, expected)


def test_errors_of_the_sidecar_carry_their_kind(catalogue: Catalogue, tmp_path: Path) -> None:
    device = f'{BASE},vendor="nvidia",device="3",uuid="GPU-d"'
    series = {
        f'k3_accelerator_xid_errors_total{{{device},xid="79"}}': "1x10",
        f'k3_accelerator_ecc_errors_total{{{device},type="uncorrected"}}': "2x10",
    }
    entry = entry_of(catalogue, "sidecar", "accelerator_errors", **{"sidecar.collect": ["gpu"]})
    evaluate(tmp_path, catalogue, entry, series,
             {f'{device},kind="xid_79"': 1, f'{device},kind="ecc_uncorrected"': 2})  # fmt: skip


@pytest.mark.parametrize("spelling", ["colon", "underscore"])
@pytest.mark.parametrize(
    ("source", "version"),
    [("vllm", "0.8.5"), ("vllm", "0.33"), ("sglang", "0.5.5"), ("sglang", "0.5.23"), ("mindie", None), ("dcgm", None),
     ("npu-exporter", None), ("sidecar", None), ("generic", None), ("vllm-ascend", "0.23")],
)  # fmt: skip
def test_example_series_yield_the_value_they_promise(
    source: str, version: str | None, spelling: str, catalogue: Catalogue, tmp_path: Path
) -> None:
    """All signals of a source at once: the series come from the catalogue, the value is chosen here."""
    rules, inputs, queries = [], {}, []
    for signal in catalogue.signals.values():
        value = 64.0 * 2**30 if signal.unit == "bytes" else 1.0
        candidates = catalogue.candidates(source, signal.name, Version.parse(version) if version else None)
        if not candidates or any(set(candidates[0].metrics) & set(names) for names in inputs.values()):
            continue
        entry = candidates[0]
        inputs[signal.name] = list(entry.metrics)
        rules += [{"record": name, "expr": expr} for name, expr in recording(signal, entry, 'stack="s"', BY)]
        if signal.kind == "histogram":
            seconds = entry.buckets[3] if entry.buckets else 1.0
            rows = example_histogram(signal, entry, seconds, TARGET, spelling)  # type: ignore[arg-type]
            inputs[signal.name] += [f"{row.series}|0+{row.factor * 60}x10" for row in rows]
            record = f"{signal.series}_sum:rate5m / {signal.series}_count:rate5m"
            queries.append({"expr": f"round(sum({record}), 0.000001)", "eval_time": "10m",
                            "exp_samples": [{"labels": "{}", "value": seconds * entry.scale}]})  # fmt: skip
            continue
        for row in example_series(signal, entry, TARGET, spelling):  # type: ignore[arg-type]
            raw = row.factor * value + row.offset
            grows = entry.terms[0].type == "summary"
            values = f"{-value}+60x10" if row.clock else f"0+{raw}x10" if grows else f"{raw}x10"
            inputs[signal.name].append(f"{row.series}|{values}")
        # what counts series sees all of them
        shown = len(entry.terms[0].examples) if entry.aggregate == "count" else value
        whole = "max" if signal.name == "expert_balance" else "sum"  # decode is also a part of phase="all"
        queries.append({"expr": f"round({whole}({signal.series}), 0.000001)", "eval_time": "10m",
                        "exp_samples": [{"labels": "{}", "value": shown}]})  # fmt: skip
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    series = [row.rsplit("|", 1) for rows in inputs.values() for row in rows if "|" in row]
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": queries}]}  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    command = [program("promtool"), "test", "rules", tmp_path / "test.yml"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(queries) >= 3
