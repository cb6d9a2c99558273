"""Alertmanager's configuration as a Secret, or translated into an AlertmanagerConfig."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from k3observe.config.model import Config
from k3observe.plan import Plan
from k3observe.render import alertmanager
from k3observe.render.kubernetes.monitors import camel
from k3observe.render.kubernetes.objects import Object, dns_name, engine_namespace, file, named, settings
from k3observe.render.text import to_yaml

MOUNT = PurePosixPath("/etc/alertmanager/secrets")
"""Where the operator mounts ``spec.secrets`` of an Alertmanager: ``<mount>/<secret>/<key>``."""

_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')
_SECRETS = {"routing_key_file": "routingKey", "api_url_file": "apiURL", "auth_password_file": "authPassword",
            "api_secret_file": "apiSecret", "url_file": "urlSecret"}  # fmt: skip
_FIELDS = {"corp_id": "corpID", "agent_id": "agentID"}
_POINTER = """\
Point your Alertmanager at it (spec.configSecret), and list the Secrets of its receivers in spec.secrets: they appear as
/etc/alertmanager/secrets/<secret>/<key>."""
_CONFIG_NOTE = """\
The operator lets an AlertmanagerConfig see only alerts whose label namespace is its own (matcher strategy OnNamespace):
alerts of this stack keep that label. Watchdog belongs to no namespace: route it in the global configuration."""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield what the configuration chose."""
    config = plan.config
    kind = settings(config).alertmanager
    if kind == "secret":
        document = named(config, "v1", "Secret", dns_name(config.stack, "alertmanager"))
        document |= {"type": "Opaque", "stringData": {"alertmanager.yaml": to_yaml(alertmanager.document(plan))}}
        yield "alertmanager-secret.yaml", file(config, [document], _POINTER)
    elif kind == "config":
        namespaces = sorted({engine_namespace(config, service) for service in config.services})
        found = [_config(plan, namespace) for namespace in namespaces]
        yield "alertmanagerconfig.yaml", file(config, found, _CONFIG_NOTE)


def secret_key(path: str) -> tuple[str, str] | None:
    """Secret and key of a file below the operator's mount, else None."""
    try:
        parts = PurePosixPath(path).relative_to(MOUNT).parts
    except ValueError:
        return None
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _config(plan: Plan, namespace: str) -> Object:
    config = plan.config
    whole = alertmanager.document(plan)
    root = dict(whole["route"])
    routes = [_route(route) for route in root.pop("routes") if 'alertname="Watchdog"' not in route["matchers"]]
    own = {"matchers": [f'stack="{config.stack}"'], **root}
    spec: Object = {
        "route": {**_route(own), "routes": routes},
        "inhibitRules": [
            {
                "sourceMatch": [matcher(text) for text in rule["source_matchers"]],
                "targetMatch": [matcher(text) for text in rule["target_matchers"]],
                "equal": rule["equal"],
            }
            for rule in whole["inhibit_rules"]
        ],
        "receivers": [_receiver(receiver) for receiver in whole["receivers"]],
    }
    if "time_intervals" in whole:
        spec["muteTimeIntervals"] = [_interval(interval) for interval in whole["time_intervals"]]
    return {
        **named(config, "monitoring.coreos.com/v1alpha1", "AlertmanagerConfig", dns_name(config.stack), namespace),
        "spec": spec,
    }


def matcher(text: str) -> Object:
    """Translate ``name=~"value"``."""
    match = _MATCHER.fullmatch(text)
    assert match is not None, text
    value = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], match[3])
    return {"name": match[1], "matchType": match[2], "value": value}


def _route(route: Object) -> Object:
    found = {camel({key: 0}).popitem()[0]: value for key, value in route.items()}
    if "matchers" in found:
        found["matchers"] = [matcher(text) for text in found["matchers"]]
    return found


def _receiver(receiver: Object) -> Object:
    found: Object = {"name": receiver["name"]}
    for key, configs in receiver.items():
        if key != "name":
            found[camel({key: 0}).popitem()[0]] = [
                dict(_fields(config)) for config in configs
            ]
    return found


def _fields(config: Object) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key in _SECRETS:
            place = secret_key(value)
            assert place is not None, value
            yield _SECRETS[key], {"name": place[0], "key": place[1]}
        else:
            yield _FIELDS.get(key, camel({key: 0}).popitem()[0]), value


def _interval(interval: Object) -> Object:
    """The operator's own spelling of a time interval; it knows no time zone but UTC."""
    found: list[Object] = []
    for item in interval["time_intervals"]:
        entry: Object = {}
        if "weekdays" in item:
            entry["weekdays"] = list(item["weekdays"])
        if "times" in item:
            entry["times"] = [{"startTime": time["start_time"], "endTime": time["end_time"]} for time in item["times"]]
        found.append(entry)
    return {"name": interval["name"], "timeIntervals": found}


def secret_files(config: Config) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Files of receivers' secrets, with the place where they stand in the configuration."""
    for name, receiver in config.notify.receivers.items():
        for kind in type(receiver).model_fields:
            section = getattr(receiver, kind)
            for field in _SECRETS:
                if value := getattr(section, field, None):
                    yield ("notify", "receivers", name, kind, field), value
