"""What the engine's own container gets: its logging configuration, the directories that it shares with the sidecar."""

from __future__ import annotations

from k3observe.config.model import Config, Service
from k3observe.render import engine_log
from k3observe.render.kubernetes.container import PLUGIN_DIR
from k3observe.render.kubernetes.objects import Object, dns_name, engine_namespace, named

CONFIG_DIR = "/etc/k3observe"


def name(config: Config, service: Service) -> str:
    """The ConfigMap's name."""
    return dns_name("k3observe", config.stack, service.name, "logging")


def configmap(config: Config, service: Service) -> Object:
    """The ConfigMap with the configuration, in the engine's namespace."""
    head = named(config, "v1", "ConfigMap", name(config, service), engine_namespace(config, service))
    return {**head, "data": {"logging.json": engine_log.text(service.engine.name)}}


def environment(service: Service) -> list[Object]:
    """Variables of the engine's container."""
    found: list[Object] = []
    if engine_log.needed(service):
        found.append({"name": engine_log.VARIABLES[service.engine.name], "value": f"{CONFIG_DIR}/logging.json"})
    if "experts" in service.sidecar.collect and service.sidecar.experts.source == "plugin":
        found.append({"name": "K3OBSERVE_EXPERTS_DIR", "value": PLUGIN_DIR})
    if service.engine.name == "mindie":
        # without it MindIE serves no metrics at all
        found.append({"name": "MIES_SERVICE_MONITOR_MODE", "value": "1"})
    return found


def mounts(service: Service) -> list[Object]:
    """Mounts of the engine's container."""
    found: list[Object] = []
    if engine_log.needed(service):
        found += [{"name": "k3observe-logging", "mountPath": CONFIG_DIR, "readOnly": True},
                  {"name": "k3observe-log", "mountPath": engine_log.LOG_DIR}]  # fmt: skip
    if "experts" in service.sidecar.collect and service.sidecar.experts.source == "plugin":
        found.append({"name": "k3observe-experts", "mountPath": PLUGIN_DIR})
    return found


def volumes(config: Config, service: Service) -> list[Object]:
    """The volume of the engine's logging configuration."""
    if not engine_log.needed(service):
        return []
    return [{"name": "k3observe-logging", "configMap": {"name": name(config, service)}}]
