"""NetworkPolicies: the sidecar's port is for Prometheus and for sidecars of the same service, all else stays open."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.plan import Plan
from k3observe.render import pods
from k3observe.render.kubernetes.objects import (
    Object,
    dns_name,
    engine_namespace,
    file,
    kubernetes_discovery,
    named,
    settings,
)

_NOTE = """\
A policy that selects a pod closes every port it does not name: these name all ports but the sidecar's as open to
everybody, so that the engine's API and the traffic between its nodes stay as they are. Pods on the host's network are
beyond any policy."""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield a policy for each service with a sidecar, and one for each DaemonSet."""
    config = plan.config
    found = []
    for service in config.services:
        kube = kubernetes_discovery(service)
        if kube is not None and pods.sidecar_collects(service, config):
            namespace = engine_namespace(config, service)
            name = dns_name(config.stack, service.name, "sidecar")
            head = named(config, "networking.k8s.io/v1", "NetworkPolicy", name, namespace)
            found.append({**head, "spec": _policy(plan, dict(kube.selector), service.sidecar.port)})
    for daemonset in pods.device_daemonset(plan):
        assert isinstance(daemonset.port, int)
        head = named(config, "networking.k8s.io/v1", "NetworkPolicy", dns_name(config.stack, daemonset.name))
        found.append({**head, "spec": _policy(plan, dict(daemonset.selector), daemonset.port)})
    if found:
        yield "networkpolicies.yaml", file(config, found, _NOTE)


def _policy(plan: Plan, selector: dict[str, str], port: int) -> Object:
    kubernetes = settings(plan.config)
    scrapers = kubernetes.prometheus_namespace or kubernetes.namespace
    others = [
        {"protocol": protocol, "port": first, **({"endPort": last} if last > first else {})}
        for protocol in ("TCP", "UDP", "SCTP")
        for first, last in (((1, port - 1), (port + 1, 65535)) if protocol == "TCP" else ((1, 65535),))
        if first <= last
    ]
    return {
        "podSelector": {"matchLabels": dict(sorted(selector.items()))},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scrapers}}},
                    {"podSelector": {"matchLabels": dict(sorted(selector.items()))}},
                ],
                "ports": [{"protocol": "TCP", "port": port}],
            },
            {"ports": others},
        ],
    }
