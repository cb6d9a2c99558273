"""What Kubernetes, an operator or a shard would silently do wrong with a configuration, refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3observe.config.errors import Path, Problem
from k3observe.config.model import Config
from k3observe.render import pods
from k3observe.render.kubernetes.alerting import MOUNT, secret_files, secret_key
from k3observe.render.kubernetes.objects import kubernetes_discovery

_DNS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def problems(config: Config) -> Iterator[Problem]:
    """Yield what cannot work."""
    yield from _shards(config)
    yield from _collectors(config)
    if config.outputs.kubernetes is None:
        return
    yield from _namespaces(config)
    yield from _alertmanager_config(config)
    yield from _daemonset(config)
    yield from _autoscaling(config)


def _shards(config: Config) -> Iterator[Problem]:
    if config.prometheus.shards == 1:
        return
    path: Path = ("prometheus", "shards")
    if config.outputs.prometheus == "fragment":
        yield Problem("a fragment has no servers to divide the targets over", path, config.prometheus.shards,
                      "use outputs.prometheus: full")  # fmt: skip
    elif not config.prometheus.remote_write:
        yield Problem("a shard sees a part of a service only, so that rules need a store that sees all", path,
                      config.prometheus.shards, "add prometheus.remote_write, and a ruler there")  # fmt: skip
    for index, target in enumerate(config.prometheus.remote_write):
        if target.series == "recorded":
            yield Problem("shards record nothing: the ruler behind remote_write does, from all series",
                          ("prometheus", "remote_write", index, "series"), "recorded", "use all")  # fmt: skip


def _collectors(config: Config) -> Iterator[Problem]:
    for index, service in enumerate(config.services):
        base: Path = ("services", index, "sidecar")
        kube = kubernetes_discovery(service)
        experts = service.sidecar.experts
        if kube is not None and isinstance(kube.port, str) and (
            "kv-cache" in service.sidecar.collect or ("experts" in service.sidecar.collect
                                                      and experts.source == "metrics" and experts.url is None)
        ):  # fmt: skip
            yield Problem("the sidecar asks the engine by number, not by the name of a port",
                          ("services", index, "discovery", "kubernetes", "port"), kube.port, "write e.g. 8000")
        renders = config.outputs.systemd or config.outputs.compose or config.outputs.kubernetes is not None
        if renders and "experts" in service.sidecar.collect:
            for source, field in (("file", "path"), ("http", "url")):
                if experts.source == source and not getattr(experts, field):
                    yield Problem(f"is missing: the source {source} needs it", (*base, "experts", field))


def _namespaces(config: Config) -> Iterator[Problem]:
    kubernetes = config.outputs.kubernetes
    assert kubernetes is not None
    places: list[tuple[Path, str | None]] = [
        (("outputs", "kubernetes", "namespace"), kubernetes.namespace),
        (("outputs", "kubernetes", "prometheus_namespace"), kubernetes.prometheus_namespace),
        (("outputs", "kubernetes", "claim"), kubernetes.claim),
    ]
    for index, service in enumerate(config.services):
        kube = kubernetes_discovery(service)
        if kube is not None:
            base: Path = ("services", index, "discovery", "kubernetes")
            places.append(((*base, "namespace"), kube.namespace))
            if kube.workload is not None:
                places += [((*base, "workload", "name"), kube.workload.name),
                           ((*base, "workload", "container"), kube.workload.container)]  # fmt: skip
    for path, name in places:
        if name is not None and not (_DNS.fullmatch(name) and len(name) <= 63):
            yield Problem("is no name for Kubernetes: lower-case letters, digits and -", path, name)


def _alertmanager_config(config: Config) -> Iterator[Problem]:
    """The operator shows an AlertmanagerConfig only alerts with its own namespace: without the label it is silent."""
    kubernetes = config.outputs.kubernetes
    assert kubernetes is not None
    if kubernetes.alertmanager != "config":
        return
    path: Path = ("outputs", "kubernetes", "alertmanager")
    if kubernetes.operator != "prometheus":
        yield Problem("AlertmanagerConfig is an object of the Prometheus operator", path, "config", "use secret")
    if "namespace" not in config.identity_labels:
        yield Problem("alerts without the label namespace never reach an AlertmanagerConfig: the operator adds the "
                      "matcher namespace=\"...\" to it", path, "config",
                      "add namespace to identity_labels, or use alertmanager: secret")  # fmt: skip
    for index, service in enumerate(config.services):
        if kubernetes_discovery(service) is None and "namespace" not in service.labels:
            yield Problem("targets outside the cluster have no namespace, which their alerts need for an "
                          "AlertmanagerConfig", ("services", index, "labels"), None,
                          f"add labels: {{namespace: {kubernetes.namespace}}}")  # fmt: skip
    for place, value in secret_files(config):
        if secret_key(value) is None:
            yield Problem("an AlertmanagerConfig names a Secret and its key, as the operator mounts them", place, value,
                          f"write {MOUNT}/<secret>/<key>")  # fmt: skip
    for name, mute in config.notify.mute.items():
        if mute.location != "UTC":
            yield Problem("time intervals of an AlertmanagerConfig are in UTC only",
                          ("notify", "mute", name, "location"), mute.location,
                          "write the hours in UTC, or use alertmanager: secret")  # fmt: skip


def _daemonset(config: Config) -> Iterator[Problem]:
    kubernetes = config.outputs.kubernetes
    assert kubernetes is not None
    names = {service.name for service in config.services}
    for index, service in enumerate(config.services):
        if service.accelerators is None:
            continue
        path: Path = ("services", index, "accelerators", "nodes")
        for node, owner in service.accelerators.nodes.items():
            if owner not in names:
                yield Problem("is no service", (*path, node), owner, f"known: {', '.join(sorted(names))}")
    if kubernetes.devices != "daemonset":
        return
    for kind in ("nvidia", "ascend"):
        readers = list(pods.daemonset_services(config, kind))
        if len(readers) > 1 and not pods.owners(readers):
            index = config.services.index(readers[0])
            yield Problem(f"several services have {kind} devices: a DaemonSet cannot tell whose a node's are",
                          ("services", index, "accelerators", "nodes"), None,
                          "add nodes: {<node>: <service>, ...}")  # fmt: skip


def _autoscaling(config: Config) -> Iterator[Problem]:
    kubernetes = config.outputs.kubernetes
    assert kubernetes is not None
    if kubernetes.autoscaling is None:
        return
    able = False
    for index, service in enumerate(config.services):
        kube = kubernetes_discovery(service)
        if service.replicas.max is not None and kube is not None and kube.workload is None:
            yield Problem("is missing: the autoscaler must know what to scale",
                          ("services", index, "discovery", "kubernetes", "workload"), None,
                          "add workload: {kind: Deployment, name: ...}")  # fmt: skip
        able = able or (service.replicas.max is not None and kube is not None)
    if not able:
        yield Problem("no service may grow: none has pods and replicas.max", ("outputs", "kubernetes", "autoscaling"),
                      None, "add replicas: {min: 2, max: 4} to a service")  # fmt: skip
