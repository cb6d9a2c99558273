"""Thresholds in force: where they come from, what overrides them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from k3observe.config import ConfigError
from k3observe.plan import Plan, Settings
from k3observe.render.alerts import rules
from tests.rules.stacks import planned, stack

VLLM, SGLANG, MINDIE = "vllm, nvidia by the sidecar", "sglang, nvidia by dcgm", "mindie, ascend by npu-exporter"


def settings(made: Plan, alert: str) -> Settings:
    return next(item.settings for item in made.armed if item.alert.name == alert)


def expression(made: Plan, alert: str) -> str:
    return next(rule.expr for group in made.pack.groups for rule in rules(made, group) if rule.alert.name == alert)


def reserving(share: float, engine: str = VLLM) -> Plan:
    document = stack(engine)
    document["services"][0]["engine"]["args"]["gpu_memory_utilization"] = share
    return planned(document)


@pytest.mark.parametrize(
    ("share", "threshold"), [(0.5, 0.92), (0.85, 0.92), (0.9, 0.93), (0.92, 0.95), (0.95, 0.975), (0.97, None)]
)
def test_the_memory_threshold_lies_above_what_vllm_reserves(share: float, threshold: float | None) -> None:
    found = settings(reserving(share), "AcceleratorMemoryHigh")
    assert found.threshold == threshold
    assert threshold is None or threshold > share
    assert found.reason is None if threshold == 0.92 else f"reserves {share:g}" in str(found.reason)


@pytest.mark.parametrize(("version", "reserved"), [("0.19.1", 0.9), ("0.20.0", 0.92), (None, 0.92)])
def test_without_the_flag_vllm_reserves_what_its_release_does(version: str | None, reserved: float) -> None:
    document = stack()
    document["services"][0]["engine"] = {"name": "vllm"} | ({"version": version} if version else {})
    assert f"reserves {reserved:g}" in str(settings(planned(document), "AcceleratorMemoryHigh").reason)


@pytest.mark.parametrize(
    ("preset", "version", "on"),
    [("kimi-k3", "0.25.1", False), ("kimi-k3", "0.26.0", True), ("kimi-k2", "0.8.5", True)],
)
def test_the_prefix_cache_of_vllm_is_on_by_default_for_recurrent_models_from_0_26_on(
    preset: str, version: str, on: bool
) -> None:
    document = stack(model={"preset": preset})
    document["services"][0]["engine"] = {"name": "vllm", "version": version}
    assert any(item.alert.name == "KVCacheHitRatioLow" for item in planned(document).armed) is on


def test_beyond_95_percent_reserved_free_memory_decides() -> None:
    assert "< 1073741824" in expression(reserving(0.97), "AcceleratorMemoryHigh")


@pytest.mark.parametrize("engine", [SGLANG, MINDIE])
def test_engines_that_take_nearly_all_memory_have_a_higher_threshold(engine: str) -> None:
    assert settings(planned(stack(engine)), "AcceleratorMemoryHigh").threshold == 0.97
    assert settings(reserving(0.96, engine), "AcceleratorMemoryHigh").threshold == 0.98


def test_the_queue_limit_is_half_a_batch_and_at_least_four() -> None:
    document = stack()
    for batch, limit in ((16, 8), (300, 150), (2, 4)):
        document["services"][0]["engine"]["args"]["max_num_seqs"] = batch
        assert settings(planned(document), "RequestsQueueing").threshold == limit


def test_a_service_overrides_the_stack_which_overrides_the_rule() -> None:
    document = stack() | {"alerts": {"KVCacheUsageHigh": {
        "threshold": 0.8, "for": "7m", "window": "3m", "severity": "info", "keep_firing_for": "1m",
        "labels": {"team": "a"}, "annotations": {"note": "x"},
    }}}  # fmt: skip
    document["services"][0]["alerts"] = {"KVCacheUsageHigh": {"threshold": "85%", "labels": {"pager": "yes"}}}
    made = planned(document)
    found = settings(made, "KVCacheUsageHigh")
    assert (found.threshold, found.for_, found.window, found.severity) == (0.85, "7m", "3m", "info")
    rule = next(rule for group in made.pack.groups for rule in rules(made, group)
                if rule.alert.name == "KVCacheUsageHigh").document()  # fmt: skip
    assert rule["labels"] == {"severity": "info", "action": "scale_out", "team": "a", "pager": "yes"}
    assert rule["keep_firing_for"] == "1m"
    assert rule["annotations"]["note"] == "x"
    assert rule["annotations"]["threshold"] == "85%"
    assert "[3m]" in rule["expr"]
    assert rule["expr"].endswith("> 0.85")


def test_an_alert_is_switched_off_for_a_service_or_on_again() -> None:
    document = stack() | {"alerts": {"KVCacheUsageHigh": {"enabled": False}}}
    made = planned(document)
    blind = next(item for item in made.blind if item.alert.name == "KVCacheUsageHigh")
    assert blind.wanted
    document["services"][0]["alerts"] = {"KVCacheUsageHigh": {"enabled": True}}
    assert settings(planned(document), "KVCacheUsageHigh")


def test_objectives_set_quantile_and_threshold_of_latencies() -> None:
    made = planned(stack(slo={"time_to_first_token": {"p50": "2s", "p95": "7s"}}))
    found = settings(made, "TimeToFirstTokenHigh")
    assert (found.threshold, dict(found.params)["quantile"]) == (7, 0.95)
    assert "histogram_quantile(0.95" in expression(made, "TimeToFirstTokenHigh")


def test_a_default_beyond_the_last_bucket_becomes_the_share_above_that_bucket() -> None:
    made = planned(stack(MINDIE))
    found = settings(made, "TimeToFirstTokenHigh")
    assert (found.threshold, dict(found.params)["share"]) == (10, 0.01)
    assert "10 s is the engine's last finite bucket" in str(found.reason)
    assert 'le=~"10([.]0)?"' in expression(made, "TimeToFirstTokenHigh")


def test_a_pace_that_cannot_be_reached_is_lowered() -> None:
    made = planned(stack(slo={"objective": 0.9}))
    assert settings(made, "SLOBurnRateFast").threshold == 8


def test_the_timeout_needs_a_bucket_exactly_there() -> None:
    made = planned(stack(alerts={"RequestsTimedOut": {"params": {"timeout": 45}}}))
    blind = next(item for item in made.blind if item.alert.name == "RequestsTimedOut")
    assert blind.reason.en == "the engine's histogram has no bucket at 45 s, the nearest are 40 and 50"
    assert blind.fix is not None
    assert blind.fix.en == "add the bucket 45 to the engine, or use timeout: 40"


@pytest.mark.parametrize(
    ("engine", "more", "message"),
    [
        (VLLM, {"alerts": {"AcceleratorMemoryHigh": {"threshold": 0.92}}},
         "services[0].alerts.AcceleratorMemoryHigh.threshold: fires always: the engine itself reserves 0.92: 0.92: "
         "use more than 0.92, or leave it out: 0.95"),
        (VLLM, {"alerts": {"KVCacheUsageHigh": {"threshold": 1.2}}},
         "must be below 1, else it fires always or never: 1.2"),
        (VLLM, {"alerts": {"KVCacheUsageHigh": {"threshold": 0}}}, "must be above 0, else it fires always or never"),
        (VLLM, {"alerts": {"ExpertRankOverloaded": {"threshold": 0.9}}}, "must be above 1"),
        (VLLM, {"alerts": {"KVCacheUsageHigh": {"window": "30s"}}},
         "services[0].alerts.KVCacheUsageHigh.window: is shorter than 4 scrape intervals of 15s"),
        (VLLM, {"alerts": {"EngineDown": {"window": "5m"}}}, "the alert has no window"),
        (VLLM, {"alerts": {"EngineDown": {"threshold": 5}}}, "the alert has no threshold"),
        (VLLM, {"alerts": {"EngineDown": {"codes": [79]}}}, "the alert has no codes"),
        (VLLM, {"alerts": {"EngineDown": {"params": {"worst": 1}}}}, "is no parameter of the alert: it has none"),
        (VLLM, {"alerts": {"KVCacheUseHigh": {"threshold": 0.9}}}, "did you mean 'KVCacheUsageHigh'?"),
        (VLLM, {"slo": {"time_to_first_token": {"p99": "3000s"}}},
         "services[0].slo.time_to_first_token.p99: can never fire: the engine's last finite bucket is 2560 s: 3000.0: "
         "use at most 2560s"),
        (MINDIE, {"alerts": {"TimeToFirstTokenHigh": {"threshold": 11}}},
         "services[0].alerts.TimeToFirstTokenHigh.threshold: can never fire: the engine's last finite bucket is 10 s"),
        (VLLM, {"slo": {"objective": 0.9}, "alerts": {"SLOBurnRateFast": {"threshold": 14.4}}},
         "can never fire: an objective that lets 0.1 fail burns at most 10.0 times its budget: 14.4: use at most 8"),
    ],
)  # fmt: skip
def test_what_can_never_or_always_fire_is_refused_with_the_way_out(
    engine: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(stack(engine, **more))
    assert message in str(caught.value)


@pytest.mark.parametrize(("alerts", "critical"), [
    ({"KVCacheUsageHigh": {"threshold": 0.95}}, 0.95),
    ({"KVCacheUsageHigh": {"threshold": 0.8}}, 0.9),
    ({"KVCacheUsageHigh": {"threshold": 0.95}, "KVCacheSaturated": {"threshold": 0.97}}, 0.97),
    ({"KVCacheUsageHigh": {"enabled": False}, "KVCacheSaturated": {"threshold": 0.8}}, 0.8),
])  # fmt: skip
def test_a_critical_alert_follows_its_warning(alerts: dict[str, Any], critical: float) -> None:
    assert settings(planned(stack() | {"alerts": alerts}), "KVCacheSaturated").threshold == critical


@pytest.mark.parametrize(("alerts", "message"), [
    ({"KVCacheSaturated": {"threshold": 0.85}},
     "alerts.KVCacheSaturated.threshold: comes before its warning, KVCacheUsageHigh at 0.9: 0.85: use at least 0.9"),
    ({"SLOBurnRateSlow": {"threshold": 12}, "SLOBurnRateFast": {"threshold": 10}},
     "alerts.SLOBurnRateFast.threshold: comes before its warning, SLOBurnRateSlow at 12: 10"),
])  # fmt: skip
def test_a_critical_alert_before_its_warning_is_refused(alerts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(stack() | {"alerts": alerts})
    assert message in str(refused.value)


def test_an_error_is_of_the_device_or_of_the_application_never_both_and_never_neither() -> None:
    made = planned(stack())
    hard, soft = (settings(made, f"Accelerator{name}").codes for name in ("Unhealthy", "ApplicationError"))
    assert hard == soft
    assert {48, 63, 64, 79, 92, 94, 95, 119, 120, 140} <= set(hard)
    assert "ecc_uncorrected" in expression(made, "AcceleratorUnhealthy")
    assert settings(planned(stack() | {"alerts": {"AcceleratorUnhealthy": {"codes": [79]}}}),
                    "AcceleratorApplicationError").codes == (79,)  # fmt: skip
