"""Routes, receivers, inhibition and secrets, as Alertmanager's own program understands them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import ConfigError, loads
from k3observe.drill import servers
from k3observe.plan import Plan, plan
from k3observe.render import render
from k3observe.render.alertmanager import ACTIONS, machines_only, problems, unheard
from k3observe.rules import load as load_rules

BASE: dict[str, Any] = {
    "version": 1,
    "stack": "kimi-k3",
    "services": [{
        "name": "kimi-k3",
        "engine": {"name": "vllm", "version": "0.33"},
        "targets": ["10.0.0.1:8000"],
    }],
}  # fmt: skip


def planned(**more: Any) -> Plan:
    loaded = loads(json.dumps(BASE | more))
    return plan(loaded, load_catalogue([]), load_rules())


def written(folder: Path, made: Plan) -> Path:
    path = folder / "alertmanager.yml"
    path.write_bytes(render(made, frozenset({"alertmanager"}))["alertmanager/alertmanager.yml"])
    return path


def hooks(*names: str) -> dict[str, Any]:
    return {name: {"webhook": {"url": f"http://hooks.example.com/{name}"}} for name in names}


EVERYONE = (*ACTIONS, "critical", "warning", "info", "watchdog", "everything-else")
ROUTES = {name: name for name in EVERYONE[:-1]} | {"default": "everything-else"}


def routed(amtool: Path, config: Path, **labels: str) -> list[str]:
    argv = [amtool, "config", "routes", "test", f"--config.file={config}", *(f"{k}={v}" for k, v in labels.items())]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip().split(",")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("severity", ["critical", "warning", "info"])
def test_an_alert_reaches_the_receivers_of_its_action_and_of_its_severity(
    amtool: Path, tmp_path: Path, action: str, severity: str
) -> None:
    config = written(tmp_path, planned(notify={"receivers": hooks(*EVERYONE), "routes": ROUTES}))
    assert routed(amtool, config, alertname="X", action=action, severity=severity) == [action, severity]


def test_the_watchdog_goes_its_own_way(amtool: Path, tmp_path: Path) -> None:
    config = written(tmp_path, planned(notify={"receivers": hooks(*EVERYONE), "routes": ROUTES}))
    assert routed(amtool, config, alertname="Watchdog", action="investigate", severity="none") == ["watchdog"]


def test_what_no_route_names_reaches_the_default(amtool: Path, tmp_path: Path) -> None:
    notify = {"receivers": hooks("scaler", "ops"), "routes": {"scale_out": "scaler", "default": "ops"}}
    config = written(tmp_path, planned(notify=notify))
    assert routed(amtool, config, alertname="X", action="rebalance", severity="warning") == ["ops"]
    assert routed(amtool, config, alertname="X", action="scale_out", severity="warning") == ["scaler"]


ALL_KINDS: dict[str, Any] = {
    "hook": {"webhook": {"url_file": "/etc/alertmanager/secrets/hook"}},
    "robot": {"robot": {"bridge": "http://127.0.0.1:19304/ops"}},
    "page": {"pagerduty": {"routing_key_file": "/etc/alertmanager/secrets/pagerduty"}},
    "chat": {"slack": {"api_url_file": "/etc/alertmanager/secrets/slack", "channel": "#k3"}},
    "mail": {"email": {
        "to": "sre@example.com", "from": "k3@example.com", "smarthost": "mail.example.com:587",
        "auth_username": "k3", "auth_password_file": "/etc/alertmanager/secrets/mail",
    }},
    "wecom": {"wecom": {"corp_id": "c", "agent_id": "1", "api_secret_file": "/etc/alertmanager/secrets/wecom",
                        "to_party": "2"}},
}  # fmt: skip


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_every_kind_of_receiver_is_accepted_by_alertmanager(amtool: Path, tmp_path: Path) -> None:
    made = planned(alertmanager={"version": "0.33"}, notify={
        "receivers": ALL_KINDS, "routes": {"default": "robot"},
        "mute": {"nights": {"weekdays": ["saturday", "sunday"], "times": ["02:00-06:00"], "location": "Asia/Shanghai"}},
    })  # fmt: skip
    config = written(tmp_path, made)
    subprocess.run([amtool, "check-config", config], check=True, capture_output=True)


def test_the_default_output_suits_the_oldest_alertmanager(amtool: Path, tmp_path: Path) -> None:
    kinds = {name: ALL_KINDS[name] for name in ("robot", "page", "chat", "mail")}
    made = planned(notify={"receivers": kinds, "routes": {"critical": "page", "default": "robot"}})
    assert list(problems(made.config)) == []
    subprocess.run([amtool, "check-config", written(tmp_path, made)], check=True, capture_output=True)


@pytest.mark.parametrize(("version", "receiver", "field"), [
    ("0.25", "hook", "webhook.url_file"),
    ("0.26", "wecom", "wecom.api_secret_file"),
    ("0.24", "page", "pagerduty.routing_key_file"),
    ("0.24", "mail", "email.auth_password_file"),
])  # fmt: skip
def test_a_secret_that_this_alertmanager_cannot_read_from_a_file_is_refused(
    version: str, receiver: str, field: str
) -> None:
    made = planned(alertmanager={"version": version}, notify={"receivers": {receiver: ALL_KINDS[receiver]}})
    [problem] = problems(made.config)
    assert str(problem).startswith(
        f"notify.receivers.{receiver}.{field}: Alertmanager {version} cannot read this secret from a file: set")


def test_a_mute_time_holds_back_its_actions_and_never_what_is_critical(tmp_path: Path) -> None:
    made = planned(notify={
        "receivers": hooks("scaler", "oncall"), "routes": {"scale_out": "scaler", "critical": "oncall"},
        "mute": {"nights": {"times": ["00:00-06:00"]}},
    })  # fmt: skip
    routes = yaml.safe_load(written(tmp_path, made).read_text())["route"]["routes"]
    assert {route["receiver"]: route.get("mute_time_intervals") for route in routes} == {
        "nobody": None, "scaler": ["nights"], "oncall": None}


def test_alerts_that_reach_nobody_are_known() -> None:
    def alone(**routes: str) -> list[str]:
        return unheard(planned(notify={"receivers": hooks("ops"), "routes": routes}))

    assert {"EngineDown", "KVCacheUsageHigh"} <= set(unheard(planned()))
    assert "Watchdog" not in unheard(planned())
    assert alone(default="ops") == []
    assert set(alone(critical="ops")) & {"EngineDown", "KVCacheUsageHigh"} == {"KVCacheUsageHigh"}
    assert "KVCacheUsageHigh" not in alone(scale_out="ops")
    assert unheard(planned(outputs={"prometheus": "fragment"})) == []


def test_critical_alerts_that_only_a_webhook_is_told_of_are_known() -> None:
    def only(**routes: str) -> dict[Any, list[str]]:
        receivers = hooks("scaler", "oncall") | {"chat": {"robot": {"bridge": "http://127.0.0.1:19304/ops"}}}
        return machines_only(planned(notify={"receivers": receivers, "routes": routes}))

    assert only(default="oncall", scale_out="scaler") == {"scale_out": ["KVCacheSaturated"]}
    assert only(scale_out="scaler") == {"scale_out": ["KVCacheSaturated"]}
    assert only(default="oncall", scale_out="scaler", critical="oncall") == {}
    assert only(default="scaler", scale_out="scaler") == {}
    assert only(default="oncall", scale_out="chat") == {}


def alert(name: str, severity: str, action: str, **labels: str) -> dict[str, str]:
    base = {"alertname": name, "severity": severity, "action": action, "stack": "kimi-k3", "service": "kimi-k3"}
    return base | labels


DEAD = alert("EngineDown", "critical", "restart_engine", instance="a:8000")
LOST = alert("AcceleratorLost", "critical", "replace_device", instance="node-a:19303", vendor="nvidia")
FULL = {"severity": "critical", "action": "scale_out", "engine": "0", "model_name": "k3"}
SILENCED: dict[str, tuple[dict[str, str], dict[str, str], bool]] = {
    "the cache of the dead engine": (DEAD, alert("KVCacheSaturated", **FULL, instance="a:8000"), True),
    "the cache of another engine": (DEAD, alert("KVCacheSaturated", **FULL, instance="b:8000"), False),
    "the queue of another engine": (
        DEAD, alert("RequestsQueueing", "warning", "scale_out", instance="b:8000", engine="0"), False),
    "the latency of several engines": (DEAD, alert("TimeToFirstTokenHigh", "warning", "investigate"), False),
    "the latency of the only engine": (
        DEAD | {"service": "one"}, alert("TimeToFirstTokenHigh", "warning", "investigate", service="one"), True),
    "a warning to scale out by another engine": (
        alert("KVCacheSaturated", **FULL, instance="a:8000"),
        alert("RequestsQueueing", "warning", "scale_out", instance="b:8000", engine="0"), True),
    "a warning about a device of that node": (
        LOST, alert("X", "warning", "replace_device", instance="node-a:19303", device="1"), True),
    "a warning about a device of another node": (
        LOST, alert("X", "warning", "replace_device", instance="node-b:19303", device="1"), False),
    "a warning with another action": (LOST, alert("X", "warning", "scale_out", instance="node-a:19303"), False),
    "a warning that names no instance": (LOST, alert("X", "warning", "replace_device"), False),
    "the slow burn of the same objective": (
        alert("SLOBurnRateFast", "critical", "investigate", slo="errors"),
        alert("SLOBurnRateSlow", "warning", "investigate", slo="errors"), True),
    "the slow burn of another": (
        alert("SLOBurnRateFast", "critical", "investigate", slo="errors"),
        alert("SLOBurnRateSlow", "warning", "investigate", slo="latency"), False),
}  # fmt: skip


def test_alertmanager_silences_what_another_alert_explains_and_nothing_else(
    alertmanager_bin: Path, tmp_path: Path
) -> None:
    several, one = {"targets": ["a:8000", "b:8000"]}, {"name": "one", "targets": ["a:8001"]}
    services = [BASE["services"][0] | several, BASE["services"][0] | one]
    made = planned(services=services, identity_labels=["cluster"], external_labels={"cluster": "x"})
    alerts = [{"labels": labels | {"cluster": case}} for case, pair in SILENCED.items() for labels in pair[:2]]
    with servers.alertmanager(alertmanager_bin, written(tmp_path, made), tmp_path) as server:
        _ask(f"{server.url}/api/v2/alerts", alerts)
        found = _ask(f"{server.url}/api/v2/alerts")
    silent = {row["labels"]["cluster"] for row in found if row["status"]["inhibitedBy"]}
    assert silent == {case for case, pair in SILENCED.items() if pair[2]}


def _ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def test_a_fragment_is_a_route_of_this_stack_to_paste(tmp_path: Path) -> None:
    made = planned(outputs={"prometheus": "fragment"}, notify={"receivers": hooks("ops"), "routes": {"default": "ops"}})
    document = yaml.safe_load(render(made)["alertmanager/kimi-k3-route.yml"])
    [route] = document["route"]["routes"]
    assert route["matchers"] == ['stack="kimi-k3"']
    assert route["receiver"] == "ops"


def test_a_route_to_a_receiver_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"notify\.routes\.default: names a receiver that does not exist: 'ops'"):
        planned(notify={"routes": {"default": "ops"}})


@pytest.mark.parametrize(("mute", "message"), [
    ({"weekdays": ["saturday:sunday"]}, "runs backwards, weeks start on sunday: 'saturday:sunday'"),
    ({"weekdays": ["someday"]}, "is no weekday or range: 'someday': write saturday or monday:friday"),
    ({"times": ["22:00-06:00"]}, "runs over midnight: '22:00-06:00': write 22:00-24:00 and 00:00-06:00 as two items"),
    ({"times": ["6-8"]}, "is no time of day: '6-8': write 02:00-06:00"),
    ({"location": "Asia/Nowhere"}, "is no time zone that this machine knows: 'Asia/Nowhere'"),
])  # fmt: skip
def test_a_mute_time_that_alertmanager_would_refuse_is_refused(mute: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        planned(notify={"mute": {"nights": mute}})
    assert message in str(refused.value)


def test_a_mute_time_reaches_what_only_the_default_receiver_takes(amtool: Path, tmp_path: Path) -> None:
    mute = {"nights": {"times": ["00:00-06:00"]}, "weekend": {"weekdays": ["sunday"], "actions": ["rebalance"]}}
    routes = {"default": "ops", "scale_out": "scaler"}
    notify = {"receivers": hooks("ops", "scaler"), "routes": routes, "mute": mute}
    config = written(tmp_path, planned(notify=notify))
    children = yaml.safe_load(config.read_text())["route"]["routes"]
    assert [(route["matchers"], route["receiver"], route["mute_time_intervals"]) for route in children[2:]] == [
        (['action!~"scale_out"', 'severity!~"critical"'], "ops", ["nights"]),
        (['action="rebalance"', 'severity!~"critical"'], "ops", ["weekend"]),
    ]
    assert routed(amtool, config, alertname="X", action="scale_out", severity="warning") == ["scaler"]
    assert routed(amtool, config, alertname="X", action="investigate", severity="warning") == ["ops"]
    assert routed(amtool, config, alertname="X", action="investigate", severity="critical") == ["ops"]


def test_a_page_has_a_summary_and_a_severity_whatever_its_group_shares(amtool: Path, tmp_path: Path) -> None:
    notify = {"receivers": {"page": ALL_KINDS["page"]}, "routes": {"default": "page"}}
    [page, _] = yaml.safe_load(written(tmp_path, planned(notify=notify)).read_text())["receivers"]
    [pagerduty] = page["pagerduty_configs"]
    alerts = [{"labels": {"severity": "none"}, "annotations": {"summary": "one"}},
              {"labels": {"severity": "warning"}, "annotations": {"summary": "two"}}]  # fmt: skip
    data = {"alerts": alerts, "commonLabels": {}, "commonAnnotations": {}}
    (tmp_path / "data.json").write_text(json.dumps(data))

    def shown(text: str) -> str:
        argv = [amtool, "template", "render", "--template.glob=/dev/null", f"--template.data={tmp_path / 'data.json'}",
                f"--template.text={text}"]  # fmt: skip
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    assert shown(pagerduty["severity"]) == "critical"
    assert shown(pagerduty["description"]) == "2: one"
