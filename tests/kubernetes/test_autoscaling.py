"""The autoscalers' queries are answered by promtool's own evaluation."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from k3observe.config.errors import ConfigError
from tests.kubernetes.conftest import Render, objects, stack

LABELS = 'stack="kimi-k3", service="kimi-k3"'


def queries(rendered: Render, **service: object) -> dict[str, str]:
    bundle = rendered(stack(service, {"kubernetes": {"autoscaling": {"memory": 0.97}}}), "kubernetes")
    rules = yaml.safe_load(bundle["kubernetes/prometheus-adapter/values.yaml"])["rules"]["external"]
    return {rule["name"]["as"].rpartition("_")[2]: rule["metricsQuery"] for rule in rules}


def evaluate(promtool: Path, folder: Path, expression: str, series: dict[str, float]) -> list[float]:
    """Samples of an instant query over these series, found by the smallest failing promtool test."""
    test = {"tests": [{
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value}x20"} for name, value in series.items()],
        "promql_expr_test": [{"expr": f"count({expression}) or vector(0)", "eval_time": "4m",
                              "exp_samples": [{"labels": "{}", "value": -1}]},
                             {"expr": expression, "eval_time": "4m", "exp_samples": [{"labels": "{}", "value": -1}]}],
    }]}  # fmt: skip
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60)
    found = [float(value) for value in re.findall(r"got:\s*(?:nil|\[?.*?\s([-+0-9.eE]+)\]?)", done.stderr + done.stdout)
             if value]  # fmt: skip
    assert len(found) <= 2, done.stderr
    return found[1:] if found[0] == 1 else []


SERIES = {
    f'k3:saturation:ratio{{{LABELS}, role="unified"}}': 0.5,
    f'k3:engine_up:bool{{{LABELS}, role="unified", instance="a"}}': 1,
    f'k3:engine_up:bool{{{LABELS}, role="unified", instance="b"}}': 1,
    f'k3:engine_up:bool{{{LABELS}, role="unified", instance="loading"}}': 0,
    f'k3:requests_waiting:count{{{LABELS}, role="unified", instance="a", engine="0"}}': 3,
    f'k3:requests_waiting:count{{{LABELS}, role="unified", instance="b", engine="0"}}': 4,
    f'k3:accelerator_memory_usage:ratio{{{LABELS}, role="unified", instance="a", device="0"}}': 0.99,
}  # fmt: skip


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_each_query_returns_one_element_and_memory_alone_adds_nothing(
    rendered: Render, promtool: Path, tmp_path: Path
) -> None:
    found = queries(rendered)
    assert evaluate(promtool, tmp_path, found["load"], SERIES) == [1.0], "2 live replicas, each half full"
    assert evaluate(promtool, tmp_path, found["waiting"], SERIES) == [7.0]
    assert evaluate(promtool, tmp_path, found["memory"], SERIES) == [2.0], "full memory without load: as many as are up"
    busy = SERIES | {f'k3:saturation:ratio{{{LABELS}, role="unified"}}': 0.7}
    assert evaluate(promtool, tmp_path, found["memory"], busy) == [3.0], "with load: one step more"


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_without_series_there_is_no_answer_and_so_no_replica_is_taken_away(
    rendered: Render, promtool: Path, tmp_path: Path
) -> None:
    for query in queries(rendered).values():
        assert evaluate(promtool, tmp_path, query, {"other": 1}) == []


def test_replicas_stay_within_the_configuration_and_move_no_faster_than_a_model_loads(rendered: Render) -> None:
    for kind in ("hpa", "keda"):
        config = stack({"replicas": {"step": 2}}, {"kubernetes": {"autoscaling": {"kind": kind}}})
        found = objects(rendered(config, "kubernetes"), "kubernetes/autoscaling")[0]
        spec, text = found["spec"], json.dumps(found)
        assert found["metadata"]["namespace"] == "llm"
        assert {2, 4} <= {spec.get("minReplicas", spec.get("minReplicaCount")),
                          spec.get("maxReplicas", spec.get("maxReplicaCount"))}  # fmt: skip
        behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 2, "periodSeconds": 1800}]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 3600
        assert "accelerator_memory" not in text, "offered only where it is asked for"
    assert spec["cooldownPeriod"] == 3600
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 2, "behavior": "currentReplicasIfHigher"}
    for trigger in spec["triggers"]:
        assert trigger["metricType"] == "AverageValue"
        assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_a_group_of_sglang_nodes_is_one_replica(rendered: Render) -> None:
    sglang = {"engine": {"name": "sglang", "version": "0.5.23"}, "sidecar": {"collect": []},
              "discovery": {"kubernetes": {"workload": {"kind": "LeaderWorkerSet", "size": 4}}}}  # fmt: skip
    assert queries(rendered, **sglang)["load"].endswith("/ 4")


def test_an_engine_that_tells_no_load_is_not_scaled_blindly(rendered: Render) -> None:
    service = {"engine": {"name": "generic", "version": None, "args": None}, "sidecar": {"collect": []}}
    with pytest.raises(ConfigError, match="tells neither load nor a queue"):
        queries(rendered, **service)
