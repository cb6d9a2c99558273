"""What is blind is summed up by the change that mends it, in explain, render and doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3observe.catalogue.model import Text
from k3observe.remedies import lines, remedies
from tests.cli.conftest import Run

STACK = """\
version: 1
stack: k3
services:
  - {name: dark, engine: {name: sglang, version: "0.5.3", args: {enable_metrics: false}}, targets: ["a:1"]}
  - {name: bare, engine: {name: vllm, version: "0.9"}, targets: ["b:1"]}
"""
METRICS, UPGRADE = Text("add --enable-metrics", "加上 --enable-metrics"), Text("use 2, or count", "使用 2，或统计")


def test_an_alert_that_wants_two_changes_counts_for_neither_alone_and_a_known_dead_end_for_none() -> None:
    found = remedies([("s", "A", [UPGRADE, METRICS]), ("s", "B", [METRICS, METRICS]), ("s", "C", [METRICS]),
                      ("s", "D", [METRICS, None])])  # fmt: skip
    assert lines(found, "en") == [
        "s: add --enable-metrics to the engine's command: arms B, C (2 alerts)",
        "s: use 2 and add --enable-metrics to the engine's command: arms A (1 alert)",
        "s: no change is known that arms D (1 alert)",
    ]
    both = Text("add --limit, and set engine.args.limit: true", "加上 --limit，并设置 engine.args.limit: true")
    assert lines(remedies([("s", "A", [both])]), "en") == [
        "s: add --limit to the engine's command, and set engine.args.limit: true: arms A (1 alert)"]
    assert lines(found, "zh-CN")[0] == "s：在引擎启动命令里加上 --enable-metrics：可启用 B, C（2 条告警）"


def test_the_change_that_explain_names_arms_the_alerts_it_names(k3observe: Run, config: Path) -> None:
    config.write_text(STACK)
    dark = json.loads(k3observe("explain", "--output", "json").stdout)["services"][0]
    what = "add --enable-metrics to the engine's command"
    [change] = [row for row in dark["remedies"] if row["changes"] == [what]]
    assert {"EngineDown", "KVCacheUsageHigh", "RequestsQueueing"} <= set(change["alerts"])
    config.write_text(STACK.replace(", args: {enable_metrics: false}", ""))
    after = json.loads(k3observe("explain", "--output", "json").stdout)["services"][0]
    assert set(change["alerts"]) <= {row["alert"] for row in after["armed"]}


@pytest.mark.parametrize(("language", "first"), [
    ("en", "alerts are not rendered; `k3observe explain` says why:"),
    ("zh-CN", "条告警未生成，原因见 `k3observe explain`："),
])  # fmt: skip
def test_render_logs_a_line_a_change_and_no_more_of_a_large_stack(
    k3observe: Run, config: Path, language: str, first: str
) -> None:
    config.write_text(STACK + f"language: {language}\n")
    _, head, *rest, unheard = k3observe("render", "-o", "out").stderr.splitlines()
    assert head.endswith(first)
    assert rest[0].startswith("  bare, dark")
    assert len(rest) == 9
    assert rest[-1].startswith("  … ")
    assert "notify.routes.default" in unheard


ENGINES = """\
version: 1
stack: k3
catalogue: [mine.yaml]
services:
  - {name: npu, engine: {name: vllm-ascend, version: "0.23"}, targets: ["a:1"], accelerators: {kind: ascend},
     sidecar: {collect: [npu]}}
  - {name: own, engine: {name: mine, args: {prefix_caching: false}}, targets: ["b:1"]}
  - {name: up, engine: {name: vllm, args: {prefix_caching: false}}, targets: ["c:1"]}
"""
MINE = "name: mine\ntitle: Mine\nkind: engine\nextends: vllm\n"


def test_what_is_said_is_said_of_this_engine_and_this_kind_of_device(k3observe: Run, config: Path) -> None:
    config.write_text(ENGINES)
    (config.parent / "mine.yaml").write_text(MINE)
    rows = json.loads(k3observe("explain", "--output", "json").stdout)["services"]
    npu, own, up = ({item["alert"]: item for kind in ("not_armed", "left_out") for item in row[kind]} for row in rows)
    assert npu["AcceleratorApplicationError"]["reason"] == "does not apply to Ascend"
    assert npu["AcceleratorApplicationError"] in rows[0]["left_out"]
    assert npu["RequestsRejected"]["fix"].startswith("use vLLM-Ascend >=0.32")
    assert "plugin," not in str([item["fix"] for item in npu.values()]), "its EPLB is not the one the plugin reads"
    assert "vLLM" not in str([own[name] for name in ("KVCacheHitRatioLow", "ExpertBalanceLow")])
    assert "--enable-prefix-caching" not in own["KVCacheHitRatioLow"]["fix"]
    assert "--enable-prefix-caching" in up["KVCacheHitRatioLow"]["fix"]


def test_render_counts_what_explain_lists_as_not_armed(k3observe: Run, config: Path) -> None:
    config.write_text(STACK)
    listed = sum(line.startswith("  not armed") for line in k3observe("explain").stdout.splitlines())
    counted = next(line for line in k3observe("render", "-o", "out").stderr.splitlines() if "not rendered" in line)
    assert counted.startswith(f"{listed} alerts are not rendered")
    assert listed == sum(len(row["not_armed"]) for row in json.loads(
        k3observe("explain", "--output", "json").stdout)["services"])  # fmt: skip
