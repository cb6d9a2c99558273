from __future__ import annotations

import pytest
import yaml

from tests.kubernetes.conftest import Render, objects, stack
from tests.kubernetes.schemas import problems

ENGINES = {
    "vllm": {"engine": {"name": "vllm", "version": "0.33"}},
    "vllm-plugin": {"engine": {"name": "vllm", "version": "0.33"}, "sidecar": {"experts": {"source": "plugin"}}},
    "sglang": {"engine": {"name": "sglang", "version": "0.5.23", "args": {"balancedness_report": "both"}},
               "sidecar": {"experts": {"source": "metrics"}}},
    "sglang-log": {"engine": {"name": "sglang", "version": "0.5.23"}},
    "vllm-ascend": {"engine": {"name": "vllm-ascend", "version": "0.23"},
                    "accelerators": {"kind": "ascend", "per_node": 16}, "sidecar": {"collect": ["npu", "experts"]}},
    "mindie": {"engine": {"name": "mindie"}, "accelerators": {"kind": "ascend", "per_node": 8},
               "sidecar": {"collect": ["npu", "kv-cache"]}},
    "generic": {"engine": {"name": "generic", "version": None}, "replicas": {"max": None}},
}  # fmt: skip
WORKLOADS = ({"kind": "LeaderWorkerSet", "size": 2}, {"kind": "Deployment"}, {"kind": "StatefulSet"})


@pytest.mark.parametrize(("engine", "workload"), list(zip(ENGINES, WORKLOADS * 3, strict=False)))
def test_every_object_of_each_engine_validates(rendered: Render, engine: str, workload: dict) -> None:
    kind = {"discovery": {"kubernetes": {"workload": workload}}}
    autoscaling = None if engine == "generic" else {"kind": "hpa", "memory": 0.97}
    found = objects(rendered(stack(ENGINES[engine] | kind, {"kubernetes": {"autoscaling": autoscaling}})))
    assert problems(found) == []
    expected = {"PodMonitor", "PrometheusRule", "Secret", "ConfigMap", "NetworkPolicy"}
    assert expected | ({"HorizontalPodAutoscaler"} if autoscaling else set()) <= {item["kind"] for item in found}


@pytest.mark.parametrize(("kubernetes", "version"), [
    ({"devices": "daemonset", "runtime_class": None}, "1.30"), ({"devices": "claim"}, "1.34"),
    ({"alertmanager": "config", "autoscaling": {"kind": "keda", "memory": 0.97}}, "1.37"),
    ({"operator": "victoria-metrics", "alertmanager": "none"}, "1.30"),
])  # fmt: skip
def test_every_choice_validates(rendered: Render, kubernetes: dict, version: str) -> None:
    notify = {
        "receivers": {
            "oncall": {"pagerduty": {"routing_key_file": "/etc/alertmanager/secrets/pd/key"}},
            "hook": {"webhook": {"url_file": "/etc/alertmanager/secrets/hook/url"}},
            "mail": {"email": {"to": "a@example.com", "from": "b@example.com", "smarthost": "mail:587",
                               "auth_username": "b", "auth_password_file": "/etc/alertmanager/secrets/mail/password"}},
            "chat": {"slack": {"api_url_file": "/etc/alertmanager/secrets/slack/url", "channel": "#k3"}},
            "corp": {"wecom": {"corp_id": "c", "agent_id": "1", "to_party": "2",
                               "api_secret_file": "/etc/alertmanager/secrets/wecom/secret"}},
            "robot": {"robot": {"bridge": "http://k3observe-notify.monitoring:19304/ops"}}},
        "routes": {"critical": "oncall", "scale_out": "hook", "default": "robot", "rebalance": "chat"},
        "mute": {"nights": {"weekdays": ["saturday", "sunday"], "times": ["00:00-06:00"], "actions": ["rebalance"]}},
    }  # fmt: skip
    found = objects(rendered(stack(outputs={"kubernetes": kubernetes}, notify=notify, identity_labels=["namespace"])))
    assert problems(found, version) == []
    assert "Deployment" in {item["kind"] for item in found}, "the bridge to robots"


def test_targets_outside_the_cluster_become_scrape_configs(rendered: Render) -> None:
    outside = stack({"discovery": None, "targets": ["10.0.0.1:8000"], "replicas": None, "scheme": "https",
                     "labels": {"rack_row": "r1"}}, {"kubernetes": True})  # fmt: skip
    found = [item for item in objects(rendered(outside)) if item["kind"] == "ScrapeConfig"]
    assert problems(found) == []
    assert [item["spec"]["staticConfigs"][0]["targets"] for item in found] == [["10.0.0.1:8000"], ["10.0.0.1:19303"]]
    assert found[0]["spec"]["staticConfigs"][0]["labels"] == {
        "stack": "kimi-k3", "service": "kimi-k3", "role": "unified", "job": "k3-engine", "rack_row": "r1"}
    victoria = objects(rendered(outside | {"outputs": {"kubernetes": {"operator": "victoria-metrics"}}}))
    found = [item for item in victoria if item["kind"] == "VMScrapeConfig"]
    assert len(found) == 2
    assert problems(found) == []
    dns = stack({"discovery": {"kubernetes": None, "dns": {"names": ["k3.llm"], "port": 8000}}}, {"kubernetes": True})
    found = [item for item in objects(rendered(dns)) if item["kind"] == "ScrapeConfig"]
    assert problems(found) == []
    assert found[0]["spec"]["dnsSDConfigs"] == [{"names": ["k3.llm"], "type": "A", "port": 8000}]


@pytest.mark.parametrize("operator", ["prometheus", "victoria-metrics"])
def test_rule_objects_hold_the_rule_files_word_for_word(rendered: Render, operator: str) -> None:
    bundle = rendered(stack(outputs={"kubernetes": {"operator": operator}}))
    files = [yaml.safe_load(text) for path, text in bundle.items() if path.startswith("prometheus/rules/")]
    rules = [item for item in objects(bundle) if item["kind"] in ("PrometheusRule", "VMRule")]
    assert sorted(item["spec"]["groups"][0]["name"] for item in rules) == [file["groups"][0]["name"] for file in files]
    assert all(item["spec"] in files for item in rules)
    assert any(path.startswith("prometheus/tests/") for path in bundle), "their unit tests lie beside"


def test_dashboards_are_found_by_the_grafana_sidecar(rendered: Render) -> None:
    boards = [item for item in objects(rendered(stack())) if item["metadata"]["labels"].get("grafana_dashboard")]
    assert len(boards) >= 5
    assert {item["metadata"]["labels"]["grafana_dashboard"] for item in boards} == {"1"}
    assert {item["metadata"]["annotations"]["grafana_folder"] for item in boards} == {"K3"}


def test_a_dashboard_too_large_for_a_configmap_is_refused() -> None:
    from k3observe.config.loader import loads
    from k3observe.render.kubernetes import dashboards

    config = loads(yaml.safe_dump(stack())).config
    with pytest.raises(dashboards.TooLargeError, match="1000001 bytes do not fit into a ConfigMap"):
        list(dashboards.files(config, {"grafana/dashboards/x.json": b" " * 1_000_001}))


def test_every_object_carries_the_operator_s_label_and_the_user_s(rendered: Render) -> None:
    config = stack(outputs={"kubernetes": {"release_label": "kps", "labels": {"team": "k3"}}})
    for item in objects(rendered(config)):
        assert item["metadata"]["labels"]["release"] == "kps"
        assert item["metadata"]["labels"]["team"] == "k3"


def test_mimir_gets_all_groups_as_one_namespace(rendered: Render) -> None:
    bundle = rendered(stack(outputs={"ruler": "mimir"}), "prometheus")
    mimir = yaml.safe_load(bundle["prometheus/mimir/kimi-k3.yml"])
    groups = [group for path, text in bundle.items() if path.startswith("prometheus/rules/")
              for group in yaml.safe_load(text)["groups"]]  # fmt: skip
    assert mimir.keys() == {"groups"}, "mimirtool takes the file's name for the namespace"
    assert sorted(mimir["groups"], key=lambda group: group["name"]) == sorted(groups, key=lambda group: group["name"])
