"""What doctor says of captures, of releases in between, and of faults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from k3observe.catalogue import Text, Version, load
from k3observe.config import loads
from k3observe.live.detect import identify, wanted_names
from k3observe.live.doctor import Reading, Report, examine
from k3observe.live.exposition import parse
from k3observe.live.exposition_source import read
from k3observe.live.signals import Finding
from k3observe.plan import plan
from k3observe.rules import load as load_rules

from .synthetic import exposition

CATALOGUE = load()
PACK = load_rules()
WANTED = wanted_names(CATALOGUE).__contains__
NOW = 1_800_000_000.0


def report(*texts: str, engine: str | None = None, asked: str | None = None) -> Report:
    readings = []
    for number, text in enumerate(texts):
        found = parse(iter([text.encode()]), f"source-{number}", WANTED)
        identity = identify(found, CATALOGUE, engine)
        assert identity is not None
        readings.append(Reading(found, identity, Version.parse(asked) if asked else None))
    return examine(readings, CATALOGUE, PACK, NOW)


def signals(found: Report) -> dict[str, Finding]:
    return {row.signal: row for row in found.signals}


def why(row: Finding) -> str:
    return " ".join(text.en for text in (row.reason, row.fix) if text)


def test_no_false_alive_and_no_false_missing_in_any_capture(shared: Path) -> None:
    folder = shared / "samples/engines"
    compared = 0
    for name, known in json.loads((folder / "expected.json").read_text("utf-8")).items():
        text = (folder / name).read_text("utf-8")
        rows = signals(report(text))
        for signal, metric in known["signals"].items():
            row = rows[signal]
            if metric is None:
                assert row.state == "missing", (name, signal, row)
                assert row.reason is not None
            else:
                assert row.state == "alive" or (row.state == "unused" and row.value == 0), (name, signal, row)
                assert row.metric == metric, (name, signal, row)
                assert row.series > 0
            compared += 1
    assert compared > 200


def test_what_is_alive_has_its_samples_in_the_file(shared: Path) -> None:
    for path in sorted((shared / "samples/engines").glob("*.prom")):
        found = read(str(path), WANTED)
        identity = identify(found, CATALOGUE)
        assert identity is not None
        for row in examine([Reading(found, identity)], CATALOGUE, PACK, NOW).signals:
            if row.state in ("alive", "wrong") and row.metric not in ("", "up"):
                assert row.metric in found.counts, (path.name, row)
            if row.state == "missing":
                assert row.reason is not None, (path.name, row)


@pytest.mark.parametrize(
    ("release", "alive", "missing"),
    [
        ("0.6.3", {"kv_cache_usage": "vllm:gpu_cache_usage_perc"}, ("kv_cache_queries", "queue_time")),
        ("0.9.0", {"kv_cache_queries": "vllm:gpu_prefix_cache_queries_total"}, ("engine_sleeping",)),
        ("0.11.0", {"kv_cache_usage": "vllm:kv_cache_usage_perc",
                    "inter_token_latency": "vllm:inter_token_latency_seconds_bucket"}, ("engine_sleeping",)),
        ("0.16.0", {"requests_waiting": "vllm:num_requests_waiting", "engine_sleeping": "vllm:engine_sleep_state"},
         ("requests_deferred", "estimated_flops", "requests_rejected")),
        ("0.24.0", {"requests_waiting": "vllm:num_requests_waiting",
                    "requests_deferred": "vllm:num_requests_waiting_by_reason"},
         ("requests_rejected", "kv_offload_bytes", "kv_transfer_failures")),
        ("0.28.0", {"requests_failed": "vllm:request_success_total"}, ("requests_rejected", "expert_balance")),
    ],
)  # fmt: skip
def test_vllm_releases_that_were_never_captured(release: str, alive: dict[str, str], missing: tuple[str, ...]) -> None:
    rows = signals(report(exposition("vllm", release)))
    for signal, metric in alive.items():
        assert (rows[signal].state, rows[signal].metric) == ("alive", metric), rows[signal]
    for signal in missing:
        assert rows[signal].state == "missing", rows[signal]


def test_sglang_0_5_5_was_never_captured() -> None:
    rows = signals(report(exposition("sglang", "0.5.5", also=("sglang:cached_tokens_total",))))
    assert rows["kv_cache_usage"].state == "alive"
    assert rows["kv_cache_queries"].metric == "sglang:prompt_tokens_total"
    assert rows["kv_cache_hits"].metric == "sglang:cached_tokens_total"
    assert rows["preemptions"].state == "missing"
    assert "0.5.7" in why(rows["preemptions"])
    assert rows["expert_balance"].state == "missing"


def test_an_idle_sglang_is_not_blind() -> None:
    found = report(exposition("sglang", "0.5.23", idle=True))
    rows = signals(found)
    assert rows["time_to_first_token"].state == "unused"
    assert rows["preemptions"].state == "unused"
    assert rows["time_to_first_token"].usable
    assert next(alert for alert in found.alerts if alert.alert == "KVCacheHitRatioLow").armed


def test_connectors_are_alive_where_a_flag_switched_them_on() -> None:
    also = ("vllm:kv_offload_load_bytes_total", "vllm:kv_offload_store_bytes_total",
            "vllm:kv_offload_cpu_cache_usage_perc", "vllm:nixl_num_failed_transfers_total")  # fmt: skip
    rows = signals(report(exposition("vllm", "0.28.0", also=also)))
    assert rows["kv_offload_bytes"].state == "alive"
    assert rows["kv_offload_bytes"].value == 200
    assert rows["kv_offload_usage"].value == 0.5
    assert rows["kv_transfer_failures"].state == "alive"
    without = signals(report(exposition("vllm", "0.28.0")))
    assert without["kv_offload_bytes"].state == "missing"
    assert "--kv-transfer-config" in why(without["kv_offload_bytes"])


def test_prefill_and_decode_instances_have_the_signals_of_their_engine() -> None:
    for kind in ("prefill", "decode"):
        rows = signals(report(exposition("sglang", "0.5.20", labels={"engine_type": kind})))
        assert rows["requests_waiting"].metric == "sglang:num_queue_reqs"
        assert rows["kv_cache_usage"].state == "alive"


def test_several_api_servers_and_data_parallel_engines_are_not_added_up() -> None:
    rows = signals(report(exposition("vllm", "0.28.0", engines=4)))
    assert rows["kv_cache_usage"].series == 4
    assert rows["kv_cache_usage"].value == 0.5


def test_the_rust_frontend_is_blind_only_where_it_leaves_something_out() -> None:
    text = exposition("vllm", "0.33.0", rust=True, also=("vllm:nixl_num_failed_transfers_total",))
    rows = signals(report(text))
    assert rows["kv_cache_usage"].state == "alive"
    assert rows["requests_finished"].state == "alive"
    for signal in ("engine_sleeping", "requests_rejected", "kv_offload_bytes"):
        assert rows[signal].state == "missing"
        assert why(rows[signal]) == "vLLM's Rust frontend leaves it out set VLLM_USE_RUST_FRONTEND=0"


def test_underscored_names_are_alive() -> None:
    rows = signals(report(exposition("vllm", "0.28.0").replace("vllm:", "vllm_")))
    assert rows["kv_cache_usage"].state == "alive"
    assert rows["time_to_first_token"].state == "alive"


def test_a_wrong_version_is_told_with_the_name_that_is_there() -> None:
    rows = signals(report(exposition("vllm", "0.8.5"), asked="0.33"))
    assert rows["kv_cache_usage"].state == "missing"
    assert why(rows["kv_cache_usage"]) == (
        "vLLM 0.33 has vllm:kv_cache_usage_perc; here is vllm:gpu_cache_usage_perc, of versions <0.9.2 "
        "set the engine's version to 0.8.5"
    )
    assert not next(a for a in report(exposition("vllm", "0.8.5"), asked="0.33").alerts if a.alert == "KVCacheUsageHigh"
                    ).armed  # fmt: skip


def test_a_prefix_cache_that_is_off_blinds_its_alert_and_names_the_flag() -> None:
    text = exposition("vllm", "0.28.0")
    for name in ("queries", "hits"):
        text = text.replace(f'vllm:prefix_cache_{name}_total{{model_name="k3",engine="0"}} 100.0',
                            f'vllm:prefix_cache_{name}_total{{model_name="k3",engine="0"}} 0.0')  # fmt: skip
    found = report(text)
    assert signals(found)["kv_cache_queries"].state == "unused"
    alert = next(alert for alert in found.alerts if alert.alert == "KVCacheHitRatioLow")
    assert not alert.armed
    assert alert.fix is not None
    assert "--enable-prefix-caching" in alert.fix.en


def test_engine_and_sidecar_together_arm_the_alerts_on_experts() -> None:
    balance = 'model_name="k3",scope="rank",phase="all",formula="mean_of_layers"'
    sidecar = "".join(f"k3_{name}{{{balance}}} {value}\n" for name, value in (
        ("expert_balance_ratio", 0.9), ("expert_balance_worst_ratio", 0.8), ("expert_load_variance", 0.1),
        ("expert_load_variance_worst", 0.4)))  # fmt: skip
    alone, both = report(exposition("vllm", "0.28.0")), report(exposition("vllm", "0.28.0"), sidecar)
    name = "ExpertLoadVarianceHigh"
    assert not next(alert for alert in alone.alerts if alert.alert == name).armed
    assert next(alert for alert in both.alerts if alert.alert == name).armed


def test_what_a_device_does_not_tell_is_not_to_be_switched_on_again() -> None:
    rows = signals(report('k3_accelerator_temperature_celsius{vendor="nvidia",device="0",uuid="GPU-0"} 50\n'))
    health, fault, balance = (rows[name] for name in ("accelerator_health", "accelerator_fault", "expert_balance"))
    assert (health.state, why(health)) == ("untold", "not told by this device")
    assert (fault.state, why(fault)) == ("unused", "no series before the first event")
    assert why(balance).endswith("add sidecar: {collect: [experts]}")


DEVICE = "".join(f'k3_accelerator_{name}{{vendor="nvidia",device="0",uuid="GPU-0"}} {value}\n' for name, value in (
    ("memory_used_bytes", 6e10), ("memory_reserved_bytes", 1e9), ("memory_total_bytes", 1e11),
    ("temperature_celsius", 50), ("throttled", 0), ("row_remap_failure", 0), ("read_success", 1),
    ("last_read_timestamp_seconds", NOW))) + 'k3_accelerators_visible{vendor="nvidia"} 1\n'  # fmt: skip


def on_device(sidecar: str) -> Report:
    loaded = loads("""
version: 1
stack: k3
services:
  - {name: k3, engine: {name: vllm, version: "0.28"}, targets: ["a:8000"], accelerators: {per_node: 1},
     sidecar: {collect: [gpu]}}
""")
    readings = []
    for text in (exposition("vllm", "0.28.0"), sidecar):
        found = parse(iter([text.encode()]), "x", WANTED)
        identity = identify(found, CATALOGUE)
        assert identity is not None
        readings.append(Reading(found, identity))
    return examine(readings, CATALOGUE, PACK, NOW, plan(loaded, CATALOGUE, PACK))


def test_what_this_device_does_not_have_is_said_and_is_no_failure() -> None:
    found = on_device(DEVICE)
    alerts = {alert.alert: alert for alert in found.alerts}
    assert found.healthy, [alert for alert in found.alerts if alert.planned and not alert.armed]
    health, link = alerts["AcceleratorUnhealthy"], alerts["AcceleratorLinkDown"]
    assert health.state == "armed", "XID and memory errors are terms of their own"
    assert health.reason == Text("accelerator_health: not told by this device", "accelerator_health：该设备不提供")
    assert (link.state, link.wants) == ("untold", ())
    hung = on_device(re.sub(r"(read_success\{.*\}) 1", r"\1 0", DEVICE))
    assert not hung.healthy, "a device that does not answer may have what it does not tell"


@pytest.mark.parametrize(
    ("old", "new", "signal", "reason"),
    [
        ('vllm:kv_cache_usage_perc{model_name="k3",engine="0"} 0.5', 'vllm:kv_cache_usage_perc{engine="0"} 93.0',
         "kv_cache_usage", "93 is outside of 0 to 1 ratio (a percentage?)"),
        ('vllm:kv_cache_usage_perc{model_name="k3",engine="0"} 0.5', 'vllm:kv_cache_usage_perc{engine="0"} NaN',
         "kv_cache_usage", "NaN: it compares false in every alert"),
        ('vllm:num_preemptions_total{model_name="k3",engine="0"} 100.0',
         'vllm:num_preemptions_total{engine="0"} 1\nvllm:num_preemptions_total{engine="0"} 2', "preemptions",
         "a series stands twice: Prometheus keeps one of them"),
        ("# TYPE vllm:num_requests_running gauge", "# TYPE vllm:num_requests_running counter", "requests_running",
         "vllm:num_requests_running is a counter, expected a gauge"),
        ('vllm:time_to_first_token_seconds_bucket{model_name="k3",engine="0",le="+Inf"} 10.0\n', "",
         "time_to_first_token", "the buckets have no +Inf"),
        ('vllm:num_requests_running{model_name="k3",engine="0"} 1.0',
         'vllm:num_requests_running{engine="0"} 1 1700000000000\nvllm:num_requests_waiting 1 1700000900000',
         "requests_running", "samples carry a timestamp 900 s old: Prometheus drops them after 300 s"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_right_is_wrong(old: str, new: str, signal: str, reason: str) -> None:
    text = exposition("vllm", "0.28.0")
    assert old in text
    row = signals(report(text.replace(old, new)))[signal]
    assert row.state == "wrong", row
    assert row.reason is not None
    assert row.reason.en == reason


def test_megabytes_are_not_taken_for_bytes() -> None:
    labels = '{vendor="nvidia",device="0",uuid="GPU-0"}'
    rows = signals(report(f"k3_accelerator_memory_total_bytes{labels} 143360\n"))
    assert rows["accelerator_memory_total"].state == "wrong"


def test_every_alert_is_armed_or_says_why_in_both_languages() -> None:
    for text in (exposition("vllm", "0.28.0"), exposition("sglang", "0.5.20")):
        for alert in report(text).alerts:
            assert alert.armed is (alert.reason is None), alert
            if alert.reason:
                assert alert.reason.zh != alert.reason.en
