"""No field of engine.args and model is decoration: each changes what is rendered or what is armed."""

from __future__ import annotations

from typing import Any

import pytest

from k3observe.catalogue import load as load_catalogue
from k3observe.config import ConfigError, loads
from k3observe.config.engine import EngineArgs, Model
from k3observe.plan import Plan, plan
from k3observe.render.bundle import render
from k3observe.rules import load as load_rules

ANOTHER: dict[str, Any] = {"balancedness_report": "both", "kv_cache_dtype": "fp8", "quantization": "awq",
                           "preset": "kimi-k2", "served_name": "other", "startup_grace": "2h",
                           "gpu_memory_utilization": 0.8}  # fmt: skip


def planned(
    args: str = "", model: str = "preset: kimi-k3", sidecar: str = "{collect: [experts]}", engine: str = "vllm",
    version: str = "0.33",
) -> Plan:  # fmt: skip
    text = f"""
version: 1
stack: k3
services:
  - name: k3
    engine: {{name: {engine}, version: "{version}", args: {{{args}}}}}
    model: {{{model}}}
    targets: ["a:8000"]
    sidecar: {sidecar}
"""
    return plan(loads(text), load_catalogue(), load_rules())


def rendered(made: Plan) -> dict[str, bytes]:
    return render(made, frozenset({"prometheus", "runbooks"}))


@pytest.mark.parametrize(("section", "field"), [
    *(("args", name) for name in EngineArgs.model_fields), *(("model", name) for name in Model.model_fields),
])  # fmt: skip
def test_a_field_changes_the_bundle(section: str, field: str) -> None:
    default = (EngineArgs if section == "args" else Model).model_fields[field].default
    value = ANOTHER.get(field, str(not default).lower() if isinstance(default, bool) else None)
    for candidate in [value] if value is not None else ["3", "true"]:  # a number, else a switch without a default
        line = f"{field}: {candidate}"
        try:
            made = planned(args=line) if section == "args" else planned(
                model=line if field == "preset" else f"preset: kimi-k3, {line}")
        except ConfigError:
            assert candidate == "3", f"{line} is refused"
            continue
        assert rendered(made) != rendered(planned("eplb: true" if section == "model" else ""))
        return


HONEST = {
    "a log has no variance": ("eplb: true", "{collect: [experts]}", "ExpertLoadVarianceHigh", False),
    "a log has a balance": ("eplb: true", "{collect: [experts]}", "ExpertBalanceLow", True),
    "a log that nothing writes has none": (
        "eplb: true, eplb_log_balancedness: false", "{collect: [experts]}", "ExpertBalanceLow", False),
    "vLLM logs no balance without EPLB": (
        "expert_parallel: true, tensor_parallel: 8", "{collect: [experts]}", "ExpertBalanceLow", False),
    "what never comes is never stale": ("expert_parallel: true", "{collect: [experts]}", "ExpertSourceStale", False),
    "what comes may be stale": ("eplb: true", "{collect: [experts]}", "ExpertSourceStale", True),
    "vLLM counts nothing without EPLB": (
        "", "{collect: [experts], experts: {source: plugin}}", "ExpertRankOverloaded", False),
    "counts have a variance": (
        "eplb: true", "{collect: [experts], experts: {source: plugin}}", "ExpertLoadVarianceHigh", True),
    "a queue without a limit refuses nothing": ("admission_limits: false", "{}", "RequestsRejected", False),
    "of a queue nothing is known": ("", "{}", "RequestsRejected", True),
}


@pytest.mark.parametrize("case", HONEST)
def test_an_alert_is_armed_only_where_it_can_fire(case: str) -> None:
    args, sidecar, alert, armed = HONEST[case]
    made = planned(args, sidecar=sidecar)
    assert (alert in {item.alert.name for item in made.armed}) is armed
    assert armed or next(blind.fix for blind in made.blind if blind.alert.name == alert) is not None


@pytest.mark.parametrize(("engine", "version", "args", "source", "comes"), [
    ("vllm", "0.27", "eplb: true", "log", False),
    ("vllm", "0.28", "eplb: true", "metrics", False),
    ("vllm-ascend", "0.23", "", "log", False),
    ("vllm-ascend", "0.23", "eplb: true", "log", True),
    ("sglang", "0.5.23", "", "log", False),
    ("sglang", "0.5.23", "balancedness_report: both", "log", True),
    ("sglang", "0.5.10", "balancedness_report: prometheus", "log", True),
    ("sglang", "0.5.23", "", "metrics", True),
    ("mindie", "2.0", "", "file", True),
])  # fmt: skip
def test_each_engine_gives_expert_loads_in_its_own_way(
    engine: str, version: str, args: str, source: str, comes: bool
) -> None:
    made = planned(args, "", f"{{collect: [experts], experts: {{source: {source}}}}}", engine, version)
    armed = {item.alert.name for item in made.armed}
    assert {"ExpertBalanceLow", "ExpertSourceStale"} & armed == (
        {"ExpertBalanceLow", "ExpertSourceStale"} if comes else set())
    assert comes or all(blind.fix for blind in made.blind if blind.alert.name == "ExpertSourceStale")



def test_panels_of_offloaded_blocks_need_the_connector() -> None:
    assert "kv_offload_bytes" not in planned().signals
    assert "kv_offload_bytes" in planned("kv_offload: true").signals


def test_attention_that_divides_the_ranks_makes_no_more_of_them() -> None:
    args = "expert_parallel: true, tensor_parallel: 8, data_parallel: 4"
    assert planned(args).facts["k3"]["expert_parallel_size"] == 32
    assert planned(f"{args}, dp_attention: true").facts["k3"]["expert_parallel_size"] == 8
