"""AlertmanagerConfig as the operator translates it, read by the real amtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.conftest import Render, objects, stack
from tests.kubernetes.operator_translation import snake

NOTIFY = {
    "receivers": {
        "oncall": {"pagerduty": {"routing_key_file": "/etc/alertmanager/secrets/pd/key"}},
        "scaler": {"webhook": {"url": "http://scaler.example.com/scale"}},
        "ops": {"webhook": {"url": "http://ops.example.com/"}},
    },
    "routes": {"scale_out": "scaler", "critical": "oncall", "default": "ops"},
}  # fmt: skip


def _matcher(item: dict) -> str:
    return f'{item["name"]}{item["matchType"]}"{item["value"]}"'


def operator(document: dict) -> dict:
    """alertmanager.yml with this one AlertmanagerConfig below the root, as strategy OnNamespace merges it."""
    space = document["metadata"]["namespace"]
    prefix = f"{space}/{document['metadata']['name']}/"

    def route(item: dict) -> dict:
        found = snake({key: value for key, value in item.items() if key not in ("routes", "matchers")})
        assert isinstance(found, dict)
        found["receiver"] = prefix + item["receiver"]
        found["matchers"] = [_matcher(matcher) for matcher in item.get("matchers", [])]
        found["routes"] = [route(child) for child in item.get("routes", [])]
        return found

    own = route(document["spec"]["route"])
    own["matchers"].append(f'namespace="{space}"')
    own["continue"] = True
    receivers = [{"name": "null"}, *({"name": prefix + item["name"]} for item in document["spec"]["receivers"])]
    return {"route": {"receiver": "null", "routes": [own]}, "receivers": receivers}


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_alerts_with_their_namespace_reach_the_same_receivers_and_others_none(
    rendered: Render, amtool: Path, tmp_path: Path
) -> None:
    config = stack(outputs={"kubernetes": {"alertmanager": "config"}}, identity_labels=["namespace"], notify=NOTIFY)
    bundle = rendered(config)
    document = next(item for item in objects(bundle) if item["kind"] == "AlertmanagerConfig")
    assert document["metadata"]["namespace"] == "llm", "where the engines' alerts come from"
    plain, merged = tmp_path / "alertmanager.yml", tmp_path / "merged.yml"
    plain.write_bytes(bundle["alertmanager/alertmanager.yml"])
    merged.write_text(yaml.safe_dump(operator(document)))

    def receivers(file: Path, *labels: str) -> list[str]:
        command = [amtool, "config", "routes", "test", f"--config.file={file}", *labels]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return [name.rpartition("/")[2] for name in done.stdout.strip().split(",")]

    base = ["stack=kimi-k3", "service=kimi-k3", "alertname=KVCacheSaturated", "namespace=llm"]
    for more in (["action=scale_out", "severity=critical"], ["action=rebalance", "severity=warning"]):
        assert receivers(merged, *base, *more) == receivers(plain, *base, *more)
    assert receivers(merged, *base[:3], "severity=critical") == ["null"], "what a missing label costs: silence"


def test_every_alert_of_such_a_stack_carries_the_namespace(rendered: Render) -> None:
    bundle = rendered(stack(identity_labels=["namespace"]), "prometheus")
    without = set()
    for path, text in bundle.items():
        if path.startswith("prometheus/tests/") and "another-stack" not in path:
            for case in yaml.load(text, yaml.CSafeLoader)["tests"]:
                for expected in case.get("alert_rule_test", []):
                    without |= {
                        expected["alertname"] for alert in expected.get("exp_alerts", [])
                        if "namespace" not in alert["exp_labels"]
                    }  # fmt: skip
    assert without <= {"Watchdog"}


def test_the_secret_holds_alertmanager_s_own_file(rendered: Render) -> None:
    bundle = rendered(stack(notify=NOTIFY))
    secret = next(item for item in objects(bundle) if item["kind"] == "Secret")
    assert yaml.safe_load(secret["stringData"]["alertmanager.yaml"]) == yaml.safe_load(
        bundle["alertmanager/alertmanager.yml"])
