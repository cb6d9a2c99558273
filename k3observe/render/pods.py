"""Targets that are found as pods: which pods of a service each job takes, and the labels it pins on them.

Both ``prometheus.yml`` (kubernetes_sd) and the objects of an operator (PodMonitor, VMPodScrape) are made from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3observe.catalogue.model import Source
from k3observe.config.model import Config, KubernetesDiscovery, Service
from k3observe.plan import Plan

ENGINE, SIDECAR = "k3-engine", "k3-sidecar"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
DEVICES = "k3observe-devices"
"""Name of the DaemonSet that reads devices, and of the job that scrapes it."""

Relabel = dict[str, Any]


@dataclass(frozen=True)
class Pods:
    """Pods of one job that are scraped alike; ``relabel`` in the spelling of prometheus.yml."""

    name: str
    namespace: str | None
    selector: Mapping[str, str]
    port: int | str
    path: str
    relabel: tuple[Relabel, ...]
    scheme: str = "http"
    ca_file: str | None = None
    prefix: str = ""
    honor_timestamps: bool = True


def found(plan: Plan) -> Iterator[Pods]:
    """Everything a stack scrapes that is found as pods."""
    config = plan.config
    for service in config.services:
        kube = service.discovery.kubernetes if service.discovery is not None else None
        if kube is not None:
            yield engine(service, kube, plan)
            if sidecar_collects(service, config) and not service.sidecar.targets:
                yield sidecar(service, kube, config)
        accelerators = service.accelerators
        if accelerators is not None and accelerators.discovery is not None and accelerators.source != "sidecar":
            yield exporter(service, accelerators.discovery, plan.catalogue.sources[accelerators.source], config)
    yield from device_daemonset(plan)


def engine(service: Service, kube: KubernetesDiscovery, plan: Plan) -> Pods:
    """The engine's job: only pods that serve an API, so that a headless node is not an engine that is down."""
    source = plan.catalogue.sources[service.engine.name]
    return Pods(
        f"{service.name}-engine", kube.namespace, {**kube.selector, **api_labels(service, kube)}, port(kube, source),
        service.metrics_path or source.metrics_path, tuple(pinned(plan.config, service, ENGINE)),
        service.scheme or "http", service.tls_ca_file, source.prefix)  # fmt: skip


def port(kube: KubernetesDiscovery, source: Source) -> int | str:
    """The container's port: as given, else the usual one of the engine or exporter."""
    return source.port if kube.port is None else kube.port


def api_labels(service: Service, kube: KubernetesDiscovery) -> Mapping[str, str]:
    """Labels that tell the pods with an API from the headless ones.

    vLLM serves on the first node of a group only. Every node of SGLang serves its own ranks' metrics.
    """
    if kube.api is not None:
        return kube.api
    grouped = kube.workload is not None and kube.workload.kind == "LeaderWorkerSet"
    return {WORKER_INDEX: "0"} if grouped and service.engine.name != "sglang" else {}


def sidecar(service: Service, kube: KubernetesDiscovery, config: Config) -> Pods:
    """The sidecar's job: all pods of the service, headless ones too."""
    return Pods(
        f"{service.name}-sidecar", kube.namespace, kube.selector, service.sidecar.port, "/metrics",
        tuple(pinned(config, service, SIDECAR)))  # fmt: skip


def exporter(service: Service, kube: KubernetesDiscovery, source: Source, config: Config) -> Pods:
    """dcgm-exporter or npu-exporter; where several services share it, the node tells which one a device serves."""
    return Pods(
        f"{service.name}-{source.name}", kube.namespace, kube.selector, port(kube, source), source.metrics_path,
        tuple(_by_node(config, source.job, [service])),
        # the samples of npu-exporter carry the time of collection: without this a chip that stalls is never stale
        honor_timestamps=source.name != "npu-exporter")  # fmt: skip


def device_daemonset(plan: Plan) -> Iterator[Pods]:
    """The DaemonSets of device collectors, one for each kind of accelerator."""
    config = plan.config
    kubernetes = config.outputs.kubernetes
    if kubernetes is None or kubernetes.devices != "daemonset":
        return
    for kind in ("nvidia", "ascend"):
        readers = list(daemonset_services(config, kind))
        if readers:
            name = f"{DEVICES}-{kind}"
            selector = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": config.stack}
            yield Pods(name, kubernetes.namespace, selector, readers[0].sidecar.port, "/metrics",
                       tuple(_by_node(config, SIDECAR, readers)))  # fmt: skip


def daemonset_services(config: Config, kind: str) -> Iterator[Service]:
    """Services whose devices a DaemonSet reads."""
    for service in config.services:
        accelerators = service.accelerators
        if (
            accelerators is not None and accelerators.kind == kind and accelerators.source == "sidecar"
            and {"gpu", "npu"} & set(service.sidecar.collect)
            and service.discovery is not None and service.discovery.kubernetes is not None
        ):  # fmt: skip
            yield service


def sidecar_collects(service: Service, config: Config) -> list[str]:
    """What the sidecar beside the engine collects: not the devices where a DaemonSet does."""
    kubernetes = config.outputs.kubernetes
    inside = service.discovery is not None and service.discovery.kubernetes is not None
    away = {"gpu", "npu"} if inside and kubernetes is not None and kubernetes.devices == "daemonset" else set()
    return [name for name in service.sidecar.collect if name not in away]


def pinned(config: Config, service: Service, job: str) -> Iterator[Relabel]:
    """Relabeling that gives a pod's series the labels every rule selects on."""
    yield from _place(config)
    for name, value in labels(config, service, job).items():
        yield {"target_label": name, "replacement": literal(value)}


def literal(value: str) -> str:
    """A replacement that stands for itself: ``$`` names a part of what was matched."""
    return value.replace("$", "$$")


def labels(config: Config, service: Service, job: str) -> dict[str, str]:
    """Target labels of a service: stack, service, role and the pinned job, then the user's own."""
    return {
        "stack": config.stack,
        "service": service.name,
        "role": service.role,
        "job": job,
        **dict(sorted(service.labels.items())),
    }


def owners(services: Iterable[Service]) -> dict[str, list[str]]:
    """Service -> the nodes that ``accelerators.nodes`` gives to it."""
    found: dict[str, set[str]] = {}
    for service in services:
        if service.accelerators is not None:
            for node, owner in service.accelerators.nodes.items():
                found.setdefault(owner, set()).add(node)
    return {owner: sorted(names) for owner, names in sorted(found.items())}


def _by_node(config: Config, job: str, readers: Sequence[Service]) -> Iterator[Relabel]:
    """Labels of a collector that may be shared: a node belongs to the one reader there is, if no other is named."""
    placed = owners(readers)
    if len(readers) == 1:
        yield from pinned(config, readers[0], job)
        placed.pop(readers[0].name, None)
    else:
        yield from _place(config)
        yield {"target_label": "stack", "replacement": config.stack}
        yield {"target_label": "job", "replacement": job}
    services = {service.name: service for service in config.services}
    for owner, names in placed.items():
        regex = "|".join(name.replace(".", r"\.") for name in names)
        for label, value in labels(config, services[owner], job).items():
            if label not in ("stack", "job"):
                yield {
                    "source_labels": ["__meta_kubernetes_pod_node_name"], "regex": regex,
                    "target_label": label, "replacement": literal(value),
                }  # fmt: skip


def _place(config: Config) -> Iterator[Relabel]:
    yield _copy("__meta_kubernetes_pod_name", "pod")
    yield _copy("__meta_kubernetes_pod_node_name", "node")
    if "namespace" in config.identity_labels:
        yield _copy("__meta_kubernetes_namespace", "namespace")


def _copy(label: str, to: str) -> Relabel:
    return {"source_labels": [label], "target_label": to}


def kubernetes_sd(pods: Pods) -> dict[str, Any]:
    """The discovery of plain Prometheus: a container's port decides which of a pod's targets is scraped."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(pods.selector.items()))
    kind = "number" if isinstance(pods.port, int) else "name"
    return {
        "kubernetes_sd_configs": [{
            "role": "pod",
            **({"namespaces": {"names": [pods.namespace]}} if pods.namespace else {}),
            "selectors": [{"role": "pod", "label": selector}],
        }],
        "relabel_configs": [
            # a pod that has ended keeps its address until it is removed
            {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Failed|Succeeded", "action": "drop"},
            {
                "source_labels": [f"__meta_kubernetes_pod_container_port_{kind}"],
                "regex": str(pods.port).replace(".", r"\."), "action": "keep",
            },
            *pods.relabel,
        ],
    }  # fmt: skip
