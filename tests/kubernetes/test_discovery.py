"""Relabeling is run by a real Prometheus against a Kubernetes API, not read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from k3observe.drill.servers import prometheus, wait_until
from tests.kubernetes.conftest import Render, objects, stack
from tests.kubernetes.fake_api import api, pod
from tests.kubernetes.operator_translation import scrape_config

LWS = "leaderworkerset.sigs.k8s.io/worker-index"
HTTP = [("http", 8000)]
pytestmark = pytest.mark.parametrize("toolset", ["3.5"], indirect=True)


LONG = pytest.mark.long
WAYS = ("plain", "operator")
PINNED = ("stack", "service", "role", "job")


def targets(binary: Path, bundle: dict[str, bytes], pods: list[dict], folder: Path) -> dict[str, list[dict[str, str]]]:
    """Labels of all active targets, of the stack as plain Prometheus has it and as the operator does."""
    monitors = [scrape_config(item) for item in objects(bundle) if item["kind"] == "PodMonitor"]
    configured = yaml.safe_load(bundle["prometheus/prometheus.yml"])["scrape_configs"]
    jobs = [*(job for job in configured if "kubernetes_sd_configs" in job), *monitors]
    with api(pods) as address:
        for job in jobs:
            for sd in job["kubernetes_sd_configs"]:
                sd["api_server"] = address
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump({"scrape_configs": jobs}))
        with prometheus(binary, file, folder) as server:

            def settled() -> bool:
                found = server.get_json("/api/v1/targets")["data"]
                seen = {item["scrapePool"] for item in [*found["activeTargets"], *found["droppedTargets"]]}
                return {job["job_name"] for job in jobs} <= seen

            wait_until(settled, "discovery", 30)
            active = server.get_json("/api/v1/targets")["data"]["activeTargets"]
    ways: dict[str, list[dict[str, str]]] = {way: [] for way in WAYS}
    for item in sorted(active, key=lambda item: (item["labels"]["job"], item["labels"]["instance"])):
        ways["operator" if item["scrapePool"].startswith("podMonitor/") else "plain"].append(item["labels"])
    return ways


GROUP = [
    pod("k3-0", "10.1.0.1", {"app": "kimi-k3", LWS: "0"}, HTTP, node="node-a"),
    pod("k3-0-1", "10.1.0.2", {"app": "kimi-k3", LWS: "1"}, HTTP, node="node-b"),
    pod("k3-old", "10.1.0.3", {"app": "kimi-k3", LWS: "0"}, HTTP, phase="Failed"),
    pod("other", "10.1.0.9", {"app": "other", LWS: "0"}, HTTP),
    pod("elsewhere", "10.1.0.8", {"app": "kimi-k3", LWS: "0"}, HTTP, namespace="prod"),
]


def test_the_engine_job_takes_pods_with_an_api_and_the_sidecar_job_takes_all(
    rendered: Render, prometheus_bin: Path, tmp_path: Path
) -> None:
    bundle = rendered(stack({"discovery": {"kubernetes": {"workload": {"kind": "LeaderWorkerSet", "size": 2}}}}))
    for found in targets(prometheus_bin, bundle, GROUP, tmp_path).values():
        assert [(item["job"], item["instance"], item["pod"], item["node"]) for item in found] == [
            ("k3-engine", "10.1.0.1:8000", "k3-0", "node-a"),
            ("k3-sidecar", "10.1.0.1:19303", "k3-0", "node-a"),
            ("k3-sidecar", "10.1.0.2:19303", "k3-0-1", "node-b"),
        ]
        for item in found:
            assert (item["stack"], item["service"], item["role"]) == ("kimi-k3", "kimi-k3", "unified")


@pytest.mark.long
def test_every_node_of_sglang_is_an_engine(
    rendered: Render, prometheus_bin: Path, tmp_path: Path
) -> None:
    service = {"engine": {"name": "sglang", "version": "0.5.23"}, "sidecar": {"collect": ["gpu"]},
               "discovery": {"kubernetes": {"port": "http", "workload": {"kind": "LeaderWorkerSet", "size": 2}}}}
    for found in targets(prometheus_bin, rendered(stack(service)), GROUP, tmp_path).values():
        assert [item["instance"] for item in found if item["job"] == "k3-engine"] == ["10.1.0.1:8000", "10.1.0.2:8000"]


@pytest.mark.long
def test_a_daemonset_s_devices_belong_to_the_service_of_their_node(
    rendered: Render, prometheus_bin: Path, tmp_path: Path
) -> None:
    config = stack({"accelerators": {"nodes": {"node-a": "kimi-k3", "node-b": "decode"}}},
                   {"kubernetes": {"devices": "daemonset"}}, identity_labels=["namespace"])  # fmt: skip
    config["services"].append({
        "name": "decode", "role": "decode", "engine": {"name": "vllm", "version": "0.33"},
        "discovery": {"kubernetes": {"namespace": "llm", "selector": {"app": "decode"}}},
        "accelerators": {"kind": "nvidia", "per_node": 8}, "sidecar": {"collect": ["gpu"]},
    })  # fmt: skip
    bundle = rendered(config)
    daemonset = next(item for item in objects(bundle) if item["kind"] == "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    pods = [
        pod(f"devices-{node}", f"10.2.0.{n}", labels, [], namespace="monitoring", node=node)
        for n, node in enumerate(("node-a", "node-b", "node-c"))
    ]
    pods.append(pod("decode-0", "10.1.0.5", {"app": "decode"}, HTTP))
    for found in targets(prometheus_bin, bundle, [*GROUP, *pods], tmp_path).values():
        read = {item["instance"]: (item.get("service"), item.get("role"))
                for item in found if item["instance"].startswith("10.2.")}
        assert read == {"10.2.0.0:19303": ("kimi-k3", "unified"), "10.2.0.1:19303": ("decode", "decode"),
                        "10.2.0.2:19303": (None, None)}  # fmt: skip
        assert {item["stack"] for item in found} == {"kimi-k3"}
        assert [item["instance"] for item in found if item["job"] == "k3-sidecar" and item["pod"] == "k3-0"] == [
            "10.1.0.1:19303"], "experts and KV cache stay beside the engine"  # fmt: skip


def exported(source: str, port: int) -> tuple[dict, dict]:
    """Devices read by somebody else's exporter: the service's accelerators, and the exporter's pod."""
    discovery = {"namespace": "devices", "selector": {"app": source}, "port": port}
    kind = "nvidia" if source == "dcgm" else "ascend"
    exporter = pod(source, "10.3.0.1", {"app": source}, [("metrics", port)], namespace="devices", sidecar=None)
    return {"kind": kind, "per_node": 8, "source": source, "discovery": discovery}, exporter


CARDS, CHIPS = {"kind": "nvidia", "per_node": 8}, {"kind": "ascend", "per_node": 8}
DCGM, DCGM_POD = exported("dcgm", 9400)
NPU, NPU_POD = exported("npu-exporter", 8082)


@pytest.mark.parametrize(("engine", "accelerators", "collect", "more", "jobs"), [
    ({"name": "vllm", "version": "0.33"}, DCGM, ["experts", "kv-cache"], [DCGM_POD], {"k3-dcgm"}),
    pytest.param({"name": "sglang", "version": "0.5.23"}, CARDS, ["gpu", "experts"], [], set(), marks=LONG),
    pytest.param(
        {"name": "vllm-ascend", "version": "0.23"}, NPU, ["experts"], [NPU_POD], {"k3-npu-exporter"}, marks=LONG),
    pytest.param({"name": "mindie"}, CHIPS, ["npu"], [], set(), marks=LONG),
], ids=["vllm, dcgm", "sglang, gpu sidecar", "vllm-ascend, npu-exporter", "mindie, npu sidecar"])  # fmt: skip
@pytest.mark.long
def test_rules_and_dashboards_select_on_labels_that_targets_have(
    rendered: Render, prometheus_bin: Path, tmp_path: Path, engine: dict, accelerators: dict, collect: list[str],
    more: list[dict], jobs: set[str],
) -> None:  # fmt: skip
    config = stack(identity_labels=["namespace"])
    config["services"][0] |= {"engine": engine, "accelerators": accelerators, "sidecar": {"collect": collect}}
    bundle = rendered(config)
    ways = targets(prometheus_bin, bundle, [*GROUP, *more], tmp_path)
    expressions = [
        rule["expr"] for path, text in bundle.items() if path.startswith("prometheus/rules/")
        for group in yaml.safe_load(text)["groups"] for rule in group["rules"]
    ] + [
        query["expr"] for path, text in bundle.items() if path.startswith("grafana/dashboards/")
        for panel in _panels(json.loads(text)) for query in panel.get("targets", [])
    ]  # fmt: skip
    assert len(expressions) > 50
    for found in ways.values():
        assert {item["job"] for item in found} == {"k3-engine", "k3-sidecar"} | jobs
        for expression in expressions:
            for matchers in _selectors(expression):
                pinned = {name: test for name, test in matchers.items() if name in PINNED}
                assert any(all(test(item.get(name, "")) for name, test in pinned.items()) for item in found), expression


def _panels(node: object) -> list[dict]:
    if isinstance(node, dict):
        return [*([node] if "targets" in node else []), *(p for value in node.values() for p in _panels(value))]
    return [p for item in node for p in _panels(item)] if isinstance(node, list) else []


def _selectors(expression: str) -> list[dict]:
    """The matchers of each selector on raw series, as tests of a value; dashboard variables match anything."""
    plain = re.sub(r"\$__\w+|\$\{__\w+[^}]*\}", "5m", expression)
    promql_parser.parse(plain)
    found = []
    for inside in re.findall(r"\{([^{}]*)\}", plain):
        tests = {}
        for name, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', inside):
            if "$" in value:
                continue
            pattern = re.compile(value.encode().decode("unicode_escape") if "~" in operator else re.escape(value))
            tests[name] = lambda text, p=pattern, n=operator[0] == "!": bool(p.fullmatch(text)) != n
        found.append(tests)
    return found
