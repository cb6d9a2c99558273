"""Kubernetes objects of a stack.

Files directly in ``kubernetes/`` are objects to apply, all listed in ``kustomization.yaml``; what lies in folders below
is to be taken into other objects: the sidecar's components, values for prometheus-adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from k3observe.config.model import Service
from k3observe.plan import Plan
from k3observe.render import engine_log
from k3observe.render.kubernetes import (
    alerting,
    autoscaling,
    component,
    dashboards,
    devices,
    engine,
    monitors,
    network,
    notify,
    rules,
)
from k3observe.render.kubernetes.objects import FOLDER, file, kubernetes_discovery
from k3observe.render.text import header, to_yaml

KUSTOMIZATION = "kustomization.yaml"


def files(plan: Plan, bundle: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the objects; rules and dashboards are those of ``bundle``, word for word."""
    config = plan.config
    if config.outputs.kubernetes is None:
        return
    found = dict(_objects(plan, bundle))
    resources = {"resources": sorted(path for path in found if "/" not in path)}
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    found[KUSTOMIZATION] = (header(config) + to_yaml({**head, **resources})).encode()
    for path, content in sorted(found.items()):
        yield f"{FOLDER}/{path}", content


def _objects(plan: Plan, bundle: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    config = plan.config
    yield from monitors.files(plan)
    yield from rules.files(config, bundle)
    yield from alerting.files(plan)
    yield from dashboards.files(config, bundle)
    yield from devices.files(plan)
    yield from network.files(plan)
    yield from notify.files(config)
    yield from autoscaling.files(plan)
    logs = [engine.configmap(config, service) for service in config.services if _in_cluster(service)]
    if logs:
        yield "engine-logging.yaml", file(config, logs)
    yield from component.files(plan)


def _in_cluster(service: Service) -> bool:
    return kubernetes_discovery(service) is not None and engine_log.needed(service)


def is_object(path: str) -> bool:
    """Whether a file of the bundle is to be applied: kustomization, patches and values are not."""
    folder, _, name = path.rpartition("/")
    return folder == FOLDER and name != KUSTOMIZATION
