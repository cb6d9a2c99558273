"""alertmanager.yml: routes by action and severity, inhibition, receivers with secrets by file only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3observe.catalogue.version import Version
from k3observe.config.errors import Problem
from k3observe.config.model import Config, Receiver, Service
from k3observe.plan import Plan
from k3observe.render.alerts import by_labels
from k3observe.render.selector import one_of, quoted
from k3observe.render.text import header, to_yaml
from k3observe.rules.model import Action

ACTIONS = ("scale_out", "rebalance", "replace_device", "restart_engine", "investigate")
SEVERITIES = ("critical", "warning", "info")
NOBODY = "nobody"

# The Alertmanager from which on a secret of this receiver can stand in a file; 0.25, 0.26 and 0.33 were tried.
_SECRET_FILES = {
    ("webhook", "url_file"): "0.26",
    ("pagerduty", "routing_key_file"): "0.25",
    ("email", "auth_password_file"): "0.25",
    ("wecom", "api_secret_file"): "0.33",
}


def problems(config: Config) -> Iterator[Problem]:
    """Yield secrets that this Alertmanager cannot read from a file: they are never written into its configuration."""
    version = Version.parse(config.alertmanager.version)
    for name, receiver in config.notify.receivers.items():
        for (kind, field), since in _SECRET_FILES.items():
            settings = getattr(receiver, kind)
            if settings is not None and getattr(settings, field) and version < Version.parse(f"{since}.0"):
                yield Problem(
                    f"Alertmanager {config.alertmanager.version} cannot read this secret from a file",
                    ("notify", "receivers", name, kind, field), None,
                    f"set alertmanager.version to {since} or later, or use another receiver")  # fmt: skip


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield alertmanager.yml, or the snippet to paste for an Alertmanager that exists already."""
    config = plan.config
    if config.outputs.prometheus == "fragment":
        route = {
            "matchers": [f"stack={quoted(config.stack)}"],
            **_grouping(config),
            **({"receiver": config.notify.routes["default"]} if "default" in config.notify.routes else {}),
            "routes": _routes(config),
        }
        snippet = document(plan) | {"route": {"routes": [route]}}
        note = "# Paste the route below your root route, and the rest beside yours.\n"
        yield f"alertmanager/{config.stack}-route.yml", (header(config) + note + to_yaml(snippet)).encode()
        return
    yield "alertmanager/alertmanager.yml", (header(config) + to_yaml(document(plan))).encode()


def unheard(plan: Plan) -> list[str]:
    """Armed alerts that reach no receiver; none where another configuration decides who is told."""
    outputs, routes = plan.config.outputs, plan.config.notify.routes
    kubernetes = outputs.kubernetes
    if "default" in routes or outputs.prometheus == "fragment" or (kubernetes and kubernetes.alertmanager == "none"):
        return []
    found = {armed.alert.name: None for armed in plan.armed
             if armed.settings.severity != "none" and not {armed.settings.severity, armed.alert.action} & set(routes)}
    return list(found)


def machines_only(plan: Plan) -> dict[Action, list[str]]:
    """Action -> its critical alerts, where they reach its webhook alone: a program acts, and no person is told.

    What the default receiver is told, a person is taken to read, whatever its kind.
    """
    notify, kubernetes = plan.config.notify, plan.config.outputs.kubernetes
    found: dict[Action, list[str]] = {}
    if "critical" in notify.routes or (kubernetes and kubernetes.alertmanager == "none"):
        return found
    for armed in plan.armed:
        name = notify.routes.get(armed.alert.action)
        if armed.settings.severity != "critical" or name is None or name == notify.routes.get("default"):
            continue
        receiver = notify.receivers[name]
        if not (receiver.robot or receiver.pagerduty or receiver.slack or receiver.email or receiver.wecom):
            names = found.setdefault(armed.alert.action, [])
            names += [armed.alert.name] if armed.alert.name not in names else []
    return found


def document(plan: Plan) -> dict[str, Any]:
    """The whole configuration, as Alertmanager reads it."""
    config = plan.config
    return {
        "route": {
            "receiver": config.notify.routes.get("default", NOBODY), **_grouping(config), "routes": _routes(config)
        },
        **({"time_intervals": _intervals(config)} if config.notify.mute else {}),
        "inhibit_rules": _inhibitions(plan),
        "receivers": _receivers(config),
    }


def _grouping(config: Config) -> dict[str, Any]:
    notify = config.notify
    return {
        "group_by": list(by_labels(config)),
        "group_wait": str(notify.group_wait),
        "group_interval": str(notify.group_interval),
        "repeat_interval": str(notify.repeat_interval),
    }


def _routes(config: Config) -> list[dict[str, Any]]:
    """Watchdog first, on its own way; then each action and each severity that has a receiver, all that match."""
    routes = config.notify.routes
    found: list[dict[str, Any]] = [{
        "matchers": ['alertname="Watchdog"'],
        "receiver": routes.get("watchdog", NOBODY),
        "group_wait": "0s",
        "group_interval": "1m",
        "repeat_interval": "5m",
    }]  # fmt: skip
    for label, names in (("action", ACTIONS), ("severity", SEVERITIES)):
        for name in names:
            if name in routes:
                mutes = [m for m, mute in config.notify.mute.items() if name in mute.actions or not mute.actions]
                found.append({
                    "matchers": [f"{label}={quoted(name)}"],
                    "receiver": routes[name],
                    "continue": True,
                    **({"mute_time_intervals": mutes} if mutes and name != "critical" else {}),
                })  # fmt: skip
    return found + (_muted_by_default(config) if "default" in routes else [])


def _muted_by_default(config: Config) -> list[dict[str, Any]]:
    """The default receiver once more, for what no route takes: the root route itself cannot be muted."""
    routes, found = config.notify.routes, []
    rest = [f"action!~{quoted('|'.join(a for a in ACTIONS if a in routes))}"] if set(ACTIONS) & set(routes) else []
    rest.append(f"severity!~{quoted('|'.join(s for s in SEVERITIES if s in routes or s == 'critical'))}")
    for name, mute in config.notify.mute.items():
        unrouted = [action for action in mute.actions if action not in routes]
        for action in unrouted:
            label = "action" if action in ACTIONS else "severity"
            own = [matcher for matcher in rest if not matcher.startswith(label)]
            found.append((name, [f"{label}={quoted(action)}", *own]))
        if not mute.actions:
            found.append((name, rest))
    return [{"matchers": matchers, "receiver": routes["default"], "mute_time_intervals": [name]}
            for name, matchers in found]  # fmt: skip


def _intervals(config: Config) -> list[dict[str, Any]]:
    found = []
    for name, mute in config.notify.mute.items():
        interval: dict[str, Any] = {"location": mute.location}
        if mute.weekdays:
            interval["weekdays"] = list(mute.weekdays)
        if mute.times:
            ends = [span.partition("-") for span in mute.times]
            interval["times"] = [{"start_time": start, "end_time": end} for start, _, end in ends]
        found.append({"name": name, "time_intervals": [interval]})
    return found


def _inhibitions(plan: Plan) -> list[dict[str, Any]]:
    """A dead engine explains its own queue and cache, a critical alert the warning with the same action.

    What others of the service still suffer is news: latencies are those of all engines, and only where there is one
    engine are they its own. To replace and to restart are done to one instance, to scale and to rebalance to a service.
    To investigate is no action in common: what users feel (SLOBurnRateFast) must not silence its cause (a hot device).
    A label that neither alert has counts as equal, so that `instance` stands only where the source always has it.
    """
    labels, stack = list(by_labels(plan.config)), f"stack={quoted(plan.config.stack)}"
    dead = ['alertname="EngineDown"', stack]
    own = sorted({armed.alert.name for armed in plan.armed if {"instance", "engine"} <= set(armed.alert.keep)})
    alone = sorted(service.name for service in plan.config.services if _engines(service) == 1)
    histograms = {signal.name for signal in plan.catalogue.signals.values() if signal.kind == "histogram"}
    pooled = sorted({armed.alert.name for armed in plan.armed
                     if armed.service.name in alone and histograms & set(armed.alert.signals)})  # fmt: skip
    found = []
    if own:
        found.append(_inhibition(dead, [stack, f"alertname=~{one_of(own)}"], [*labels, "instance"]))
    if pooled:
        lonely = f"service=~{one_of(alone)}"
        found.append(_inhibition([*dead, lonely], [stack, f"alertname=~{one_of(pooled)}"], labels))
    for actions, equal in (("rebalance|scale_out", labels), ("replace_device|restart_engine", [*labels, "instance"])):
        source = ['severity="critical"', f"action=~{quoted(actions)}", stack]
        found.append(_inhibition(source, ['severity="warning"', stack], [*equal, "action"]))
    if any(armed.alert.name == "SLOBurnRateFast" for armed in plan.armed):
        found.append(_inhibition(['alertname="SLOBurnRateFast"', stack], ['alertname="SLOBurnRateSlow"', stack],
                                 [*labels, "slo"]))  # fmt: skip
    return found


def _inhibition(source: list[str], target: list[str], equal: list[str]) -> dict[str, Any]:
    return {"source_matchers": source, "target_matchers": target, "equal": equal}


def _engines(service: Service) -> int | None:
    """How many engines there may be at once; None where the configuration does not say."""
    return service.replicas.max or service.replicas.expected or len(service.targets) or None


def _receivers(config: Config) -> list[dict[str, Any]]:
    found = [_receiver(name, receiver) for name, receiver in config.notify.receivers.items()]
    return [*found, {"name": NOBODY}]


def _receiver(name: str, receiver: Receiver) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name}
    hooks: list[dict[str, Any]] = []
    if receiver.webhook is not None:
        place = {"url": receiver.webhook.url} if receiver.webhook.url else {"url_file": receiver.webhook.url_file}
        hooks.append({**place, "send_resolved": receiver.webhook.send_resolved})
    if receiver.robot is not None:
        hooks.append({"url": receiver.robot.bridge, "send_resolved": True})
    if hooks:
        document["webhook_configs"] = hooks
    if receiver.pagerduty is not None:
        document["pagerduty_configs"] = [{
            "routing_key_file": receiver.pagerduty.routing_key_file,
            # what the alerts of a group do not share is empty, and PagerDuty takes neither field empty
            "severity": '{{ with .CommonLabels.severity }}{{ if eq . "none" }}info{{ else }}{{ . }}{{ end }}'
                        "{{ else }}critical{{ end }}",
            "description": "{{ with .CommonAnnotations.summary }}{{ . }}{{ else }}"
                           "{{ len .Alerts }}: {{ (index .Alerts 0).Annotations.summary }}{{ end }}",
        }]  # fmt: skip
    if receiver.slack is not None:
        document["slack_configs"] = [{
            "api_url_file": receiver.slack.api_url_file,
            **({"channel": receiver.slack.channel} if receiver.slack.channel else {}),
            "send_resolved": True,
            "title": '{{ .Status | toUpper }} {{ .CommonLabels.service }}',
            "text": "{{ range .Alerts }}{{ .Annotations.summary }}\n{{ .Annotations.description }}\n{{ end }}",
        }]  # fmt: skip
    if receiver.email is not None:
        mail = receiver.email
        document["email_configs"] = [{
            "to": mail.to, "from": mail.from_, "smarthost": mail.smarthost, "send_resolved": True,
            **({"auth_username": mail.auth_username} if mail.auth_username else {}),
            **({"auth_password_file": mail.auth_password_file} if mail.auth_password_file else {}),
        }]  # fmt: skip
    if receiver.wecom is not None:
        way = receiver.wecom
        document["wechat_configs"] = [{
            "corp_id": way.corp_id, "agent_id": way.agent_id, "api_secret_file": way.api_secret_file,
            **({"to_party": way.to_party} if way.to_party else {}), **({"to_user": way.to_user} if way.to_user else {}),
            "send_resolved": True, "message_type": "markdown",
            "message": "{{ range .Alerts }}{{ .Annotations.summary }}\n{{ .Annotations.description }}\n{{ end }}",
        }]  # fmt: skip
    return document
