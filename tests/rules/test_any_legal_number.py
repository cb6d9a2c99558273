"""What a user may write gives rules that load and tests that pass, also at the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3observe.config import ConfigError
from k3observe.plan import Plan
from k3observe.render import own_texts, render
from k3observe.render.alerts import rules
from tests.rules.stacks import planned, stack
from tests.rules.test_rendered_tests import run

VLLM, SGLANG = "vllm, nvidia by the sidecar", "sglang, nvidia by dcgm"
GENERIC, MINDIE = "generic, nvidia by dcgm", "mindie, ascend by npu-exporter"


def expressions(made: Plan, alert: str) -> list[str]:
    return [rule.expr for group in made.pack.groups for rule in rules(made, group) if rule.alert.name == alert]


@pytest.mark.parametrize("interval", ["1s", "7s", "100s", "2m"])
def test_the_tests_pass_at_any_interval(interval: str, tmp_path: Path) -> None:
    prometheus = {"version": "3.5", "scrape_interval": interval, "evaluation_interval": interval}
    only = ("EngineDown", "EngineStalled", "KVCacheUsageHigh", "AcceleratorUnhealthy", "RequestErrorsHigh")
    assert run(VLLM, "3.5", tmp_path, only, prometheus=prometheus) == ""


def test_the_tests_pass_with_odd_numbers_and_names(tmp_path: Path) -> None:
    document = stack(VLLM, model={"served_name": 'a"b\\c'}, labels={"rack_row": "$1"})
    changes: dict[str, Any] = {
        "KVCacheUsageHigh": {"threshold": 0.25, "for": "0s", "labels": {"team": "x", "az": "", "device": "all"}},
        "EngineStalled": {"window": "1h", "for": "20m"}, "AcceleratorReadStale": {"threshold": 1000, "for": "1s"},
    }  # fmt: skip
    more = {"services": document["services"], "alerts": changes, "external_labels": {"cluster": "a b"}}
    assert run(VLLM, "3.5", tmp_path, (*changes, "signals-tokens", "signals-kv-cache"), **more) == ""


def test_the_tests_pass_however_long_an_alert_waits(tmp_path: Path) -> None:
    waits = {"EngineDown": "30m", "EngineReplicasLow": "30m", "Watchdog": "6h", "KVCachePreemptionsHigh": "1s",
             "AcceleratorUnhealthy": "7m", "AcceleratorApplicationError": "7m"}  # fmt: skip
    changes: dict[str, Any] = {name: {"for": wait} for name, wait in waits.items()}
    changes |= {"AcceleratorMemoryGrowing": {"window": "3m", "for": "10m"}, "RequestErrorsHigh": {"threshold": 0.99}}
    services = stack(VLLM, replicas={"expected": 3})["services"]
    assert run(VLLM, "3.5", tmp_path, tuple(changes), services=services, alerts=changes) == ""


def test_the_tests_pass_whatever_is_asked_of_the_traffic(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "RequestErrorsHigh": {"threshold": 0.001, "params": {"least": 50}},
        "RequestAbortsHigh": {"params": {"least": 900}},
        "QueueTimeHigh": {"keep_firing_for": "1h"}, "EngineReplicasLow": {"for": "0s", "keep_firing_for": "1m"},
    }  # fmt: skip
    services = stack(VLLM, replicas={"expected": 3})["services"]
    assert run(VLLM, "3.5", tmp_path, tuple(changes), services=services, alerts=changes) == ""


def test_an_error_budget_burns_where_failed_requests_are_counted_apart_and_all_fail(tmp_path: Path) -> None:
    services = stack(SGLANG, slo={"errors": 0.1})["services"]
    changes = {"SLOBurnRateSlow": {"threshold": 9}, "SLOBurnRateFast": {"threshold": 9, "params": {"floor": 2}}}
    assert run(SGLANG, "3.5", tmp_path, tuple(changes), services=services, alerts=changes) == ""


@pytest.mark.parametrize(("more", "message"), [
    ({"alerts": {"AcceleratorUnhealthy": {"for": "8m"}}},
     "AcceleratorUnhealthy.for: outlasts half the window of 15m.*use at most 7m30s"),
    ({"slo": {"queue_time": {"p99": "200ms"}}}, "slo.queue_time.p99: cannot be told.*first bucket is 0.3 s.*at least"),
    ({"slo": {"errors": 0.99}}, "slo.errors: lets 0.99 of the requests fail.*use at most 0.85"),
    ({"slo": {"objective": 0.1}}, "slo.objective: lets 0.9 of the requests fail.*use at least 0.15"),
])  # fmt: skip
def test_what_can_never_or_always_fire_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        planned(stack(VLLM, **more))
    assert len(caught.value.problems) == 1


def test_an_engine_that_counts_blocks_has_its_tokens(tmp_path: Path) -> None:
    services = stack(VLLM, engine={"name": "vllm", "version": "0.8"})["services"]
    assert run(VLLM, "3.5", tmp_path, ("signals-kv-cache", "signals-tokens"), services=services) == ""


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_objectives_of_a_part_of_a_service_are_those_of_its_role(role: str, tmp_path: Path) -> None:
    services = stack(MINDIE, role=role)["services"]
    assert run(MINDIE, "3.5", tmp_path, ("signals-slo", "signals-latency"), services=services) == ""


@pytest.mark.parametrize("interval", ["scrape_interval", "evaluation_interval"])
def test_windows_hold_four_of_either_interval(interval: str) -> None:
    made = planned(stack(VLLM) | {"prometheus": {interval: "2m"}})
    assert "[8m]" in "".join(expressions(made, "KVCacheUsageHigh"))
    assert "[8m]" in "".join(expressions(made, "KVCachePreemptionsHigh"))
    with pytest.raises(ConfigError, match=r"KVCacheUsageHigh.window: is shorter than 4 .* of 2m.*use at least 8m"):
        planned(stack(VLLM) | {"prometheus": {interval: "2m"}, "alerts": {"KVCacheUsageHigh": {"window": "5m"}}})
    with pytest.raises(ConfigError, match=f"prometheus.{interval}: is outside 1s to 2m"):
        planned(stack(VLLM) | {"prometheus": {interval: "5m"}})


def test_an_objective_beyond_the_last_bucket_whose_alert_is_off_renders() -> None:
    made = planned(stack(MINDIE, slo={"time_to_first_token": {"p99": "1m"}},
                         alerts={"TimeToFirstTokenHigh": {"enabled": False}}))  # fmt: skip
    assert b'le=~"10([.]0)?"' in render(made)["prometheus/rules/k3-signals-slo.yml"]


@pytest.mark.parametrize(("settings", "message"), [
    ({"annotations": {"note": "{{ $value | humanize }}"}},
     "annotations.note: unknown template {{ $value | humanize }}"),
    ({"annotations": {"note": "{{ $labels.x"}}, "annotations.note: {{ is not closed"),
    ({"labels": {"team": "{{ $labels.x }}"}}, "labels.team: a label by template makes a new alert of each value"),
])  # fmt: skip
def test_a_template_that_cannot_be_foreseen_is_refused(settings: dict[str, Any], message: str) -> None:
    made = planned(stack(VLLM) | {"alerts": {"KVCacheUsageHigh": settings}})
    assert [message in str(problem) for problem in own_texts.problems(made.config)] == [True]


def test_an_exporter_of_devices_that_is_scraped_nowhere_is_refused() -> None:
    document = stack(GENERIC)
    document["services"][0]["accelerators"].pop("targets")
    with pytest.raises(ConfigError, match=r"accelerators.source: dcgm is scraped nowhere: 'dcgm': add targets or disc"):
        planned(document)


def test_dollars_stand_for_themselves() -> None:
    document = stack(VLLM, labels={"rack_row": "$1"}, model={"served_name": "$HOME"})
    service = document["services"][0]
    del service["targets"]
    service["discovery"] = {"dns": {"names": ["a.example.com"], "port": 8000}}
    document |= {"outputs": {"compose": True}, "external_labels": {"cluster": "$USER"}}
    for version, cluster in (("2.42", "$USER"), ("3.5", "$$USER")):
        files = render(planned(document | {"prometheus": {"version": version}}))
        assert f"cluster: {cluster}\n" in files["prometheus/prometheus.yml"].decode()
    assert b"replacement: $$1\n" in files["prometheus/prometheus.yml"]
    assert b"--experts.model-name=$$HOME\n" in files["compose/sidecar-vllm.yaml"]
