"""The sidecar as a kustomize component for the engine's own object, and as a snippet to paste into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3observe.config.model import Service, Workload
from k3observe.plan import Plan
from k3observe.render import pods
from k3observe.render.kubernetes import engine as engine_container
from k3observe.render.kubernetes.container import container, grouped, volumes
from k3observe.render.kubernetes.objects import Object, dns_name, engine_namespace, kubernetes_discovery, settings
from k3observe.render.text import header, to_yaml

LWS_API = "leaderworkerset.x-k8s.io/v1"
_SNIPPET = """\
The sidecar of {service}, for those who do not use kustomize: merge this into the pod template.
The container {container} is the engine's, which keeps all that it has."""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield a folder for each service that has pods and a sidecar."""
    config = plan.config
    for service in config.services:
        kube = kubernetes_discovery(service)
        collect = pods.sidecar_collects(service, config)
        if kube is None or not collect:
            continue
        folder = f"components/{dns_name(service.name)}"
        engine = (kube.workload.container if kube.workload else None) or service.engine.name
        spec = pod_spec(plan, service, collect, engine)
        note = "".join(f"# {line}\n" for line in _SNIPPET.format(service=service.name, container=engine).splitlines())
        yield f"{folder}/snippet.yaml", (header(config) + note + to_yaml({"spec": spec})).encode()
        if kube.workload is not None:
            patch = _patch(plan, service, kube.workload, engine, spec)
            yield f"{folder}/patch.yaml", (header(config) + to_yaml(patch)).encode()
            component = _component(kube.workload)
            yield f"{folder}/kustomization.yaml", (header(config) + to_yaml(component)).encode()
            if kube.workload.kind == "LeaderWorkerSet":
                yield f"{folder}/schema.json", _schema()


def pod_spec(plan: Plan, service: Service, collect: list[str], engine: str) -> Object:
    """What is added to the pod: a native sidecar, and what the engine's container shares with it."""
    config = plan.config
    kube = kubernetes_discovery(service)
    assert kube is not None
    shared: Object = {"name": engine}
    port = pods.port(kube, plan.catalogue.sources[service.engine.name])
    if isinstance(port, int):
        # discovery finds declared ports only
        shared["ports"] = [{"containerPort": port, "protocol": "TCP"}]
    if environment := engine_container.environment(service):
        shared["env"] = environment
    if mounts := engine_container.mounts(service):
        shared["volumeMounts"] = mounts
    accelerators = service.accelerators
    runtime = settings(config).runtime_class
    needs_runtime = "gpu" in collect and runtime and settings(config).devices == "node"
    sidecar = container(plan, service, collect)
    mounted = volumes(service, collect) + engine_container.volumes(config, service)
    return {
        **({"runtimeClassName": runtime} if needs_runtime and accelerators is not None else {}),
        # an init container that restarts is a sidecar (Kubernetes 1.29): it starts before the engine and ends after it
        "initContainers": [{**sidecar, "restartPolicy": "Always"}],
        **({"containers": [shared]} if len(shared) > 1 else {}),
        **({"volumes": mounted} if mounted else {}),
    }


def _patch(plan: Plan, service: Service, workload: Workload, engine: str, leader: Object) -> Object:
    metadata = {"name": workload.name, "namespace": engine_namespace(plan.config, service)}
    if workload.kind != "LeaderWorkerSet":
        return {
            "apiVersion": "apps/v1", "kind": workload.kind, "metadata": metadata,
            "spec": {"template": {"spec": leader}},
        }  # fmt: skip
    templates = {"leaderTemplate": {"spec": leader}}
    collect = _worker_collects(plan, service)
    if collect and workload.size > 1:
        worker = pod_spec(plan, service, collect, engine)
        sidecar = worker["initContainers"][0]
        if grouped(service) > 1:
            # it hands its window to the sidecar of worker 0
            own = [flag for flag in sidecar["args"] if not flag.startswith("--experts.peer=")]
            sidecar["args"] = [*own, "--experts.window-only"]
        templates["workerTemplate"] = {"spec": worker}
    return {
        "apiVersion": LWS_API, "kind": workload.kind, "metadata": metadata,
        "spec": {"leaderWorkerTemplate": templates},
    }  # fmt: skip


def _worker_collects(plan: Plan, service: Service) -> list[str]:
    """What there is to collect in the other pods of a group: without an API no metrics, and no log lines on experts."""
    collect = pods.sidecar_collects(service, plan.config)
    if service.engine.name == "sglang":
        return collect
    alone = {"kv-cache"} | (set() if grouped(service) > 1 else {"experts"})
    return [name for name in collect if name not in alone]


def _component(workload: Workload) -> Object:
    target = {"kind": workload.kind, "name": workload.name}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        # kustomize knows how to merge lists of its own kinds only
        **({"openapi": {"path": "schema.json"}} if workload.kind == "LeaderWorkerSet" else {}),
        "patches": [{"path": "patch.yaml", "target": target}],
    }


def _schema() -> bytes:
    """How the lists of a LeaderWorkerSet's pods are merged: by name, as those of a Deployment."""
    import json

    def named(key: str, item: str) -> dict[str, Any]:
        return {
            "type": "array", "items": {"$ref": f"#/definitions/{item}"},
            "x-kubernetes-patch-merge-key": key, "x-kubernetes-patch-strategy": "merge",
        }  # fmt: skip

    def kind(properties: dict[str, Any], **own: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties, **own}

    template = {"$ref": "#/definitions/k3observe.PodTemplate"}
    plain = {"type": "object"}
    definitions = {
        "k3observe.Named": plain,
        "k3observe.Container": kind({
            "env": named("name", "k3observe.Named"), "volumeMounts": named("mountPath", "k3observe.Named"),
            "ports": named("containerPort", "k3observe.Named"),
        }),
        "k3observe.PodTemplate": kind({"spec": kind({
            "containers": named("name", "k3observe.Container"),
            "initContainers": named("name", "k3observe.Container"),
            "volumes": named("name", "k3observe.Named"),
        })}),
        "k3observe.LeaderWorkerSet": kind(
            {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": plain,
                "spec": kind({"leaderWorkerTemplate": kind({"leaderTemplate": template, "workerTemplate": template})}),
            },
            **{"x-kubernetes-group-version-kind": [
                {"group": "leaderworkerset.x-k8s.io", "version": "v1", "kind": "LeaderWorkerSet"}]}),
    }  # fmt: skip
    return (json.dumps({"definitions": definitions}, indent=1) + "\n").encode()
