"""The sidecar's container: what it may do, what it sees, and what it must never do to the engine beside it."""

from __future__ import annotations

from collections.abc import Sequence

from k3observe.config.model import Config, Service
from k3observe.plan import Plan
from k3observe.render import pods
from k3observe.render.engine_log import LOG_DIR
from k3observe.render.kubernetes.objects import Object, kubernetes_discovery, settings
from k3observe.render.sidecar import Place, flags

NAME = "k3observe"
PLUGIN_DIR = "/run/k3observe-experts"
DEVICES_ANNOTATION = "k3observe.io/devices"
ASCEND = "/usr/local/Ascend/driver"
_USER = 65532
_DRIVER = (("ascend-driver", ASCEND, "Directory"), ("ascend-dcmi", "/usr/local/dcmi", "DirectoryOrCreate"),
           ("npu-smi", "/usr/local/bin/npu-smi", "File"))  # fmt: skip


def container(plan: Plan, service: Service, collect: Sequence[str]) -> Object:
    """The container. It has no startup and no readiness probe: monitoring must not hold back or unready an engine.

    The liveness probe asks whether the process serves and touches no device: a card that hangs must not get its
    observer killed.
    """
    config = plan.config
    found: Object = {
        "name": NAME,
        "image": config.outputs.images.exporter,
        "imagePullPolicy": "IfNotPresent",
        "args": [*flags(plan, service, collect, place(plan, service)), *_group_flags(service)],
        "env": _environment(config, service, collect),
        "ports": [{"name": NAME, "containerPort": service.sidecar.port, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"path": "/-/healthy", "port": NAME},
            "initialDelaySeconds": 10, "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 6,
        },
        "resources": _resources(config, collect),
        "securityContext": _security(collect),
        "volumeMounts": _mounts(service, collect),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value not in ([], {})}


def place(plan: Plan, service: Service) -> Place:
    """What the sidecar finds in the engine's pod."""
    kube = kubernetes_discovery(service)
    assert kube is not None
    port = pods.port(kube, plan.catalogue.sources[service.engine.name])
    return Place("127.0.0.1", port if isinstance(port, int) else None, f"{LOG_DIR}/*.log", PLUGIN_DIR)


def grouped(service: Service) -> int:
    """Pods of an expert-parallel group whose sidecars must add up their windows: 1 where each sees all it needs."""
    kube = kubernetes_discovery(service)
    counts = "experts" in service.sidecar.collect and service.sidecar.experts.source in ("plugin", "file")
    if kube is None or kube.workload is None or not counts:
        return 1
    return kube.workload.size


def _group_flags(service: Service) -> list[str]:
    """Worker 0 adds up the windows of its group; kubelet fills in the pod's name (``kimi-k3-0``, then ``-1`` ...)."""
    kube = kubernetes_discovery(service)
    if grouped(service) == 1 or kube is None or kube.workload is None:
        return []
    return [
        f"--experts.peer=http://$(POD_NAME)-{worker}.{kube.workload.name}.$(POD_NAMESPACE):{service.sidecar.port}"
        for worker in range(1, grouped(service))
    ]


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _environment(config: Config, service: Service, collect: Sequence[str]) -> list[Object]:
    found: list[Object] = []
    mode = settings(config).devices
    if "gpu" in collect and mode != "claim":
        # the runtime shows every GPU of the node and no library but NVML's
        found += [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                  {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}]  # fmt: skip
    if "npu" in collect:
        libraries = ":".join(f"{ASCEND}/lib64{part}" for part in ("", "/common", "/driver"))
        found.append({"name": "LD_LIBRARY_PATH", "value": libraries})
    for name in ("gpu", "npu"):
        if name in collect and mode == "node":
            # a pod that does not have its node to itself says here which devices are its own; empty is all
            path = f"metadata.annotations['{DEVICES_ANNOTATION}']"
            found.append(_field(f"K3OBSERVE_{name.upper()}_DEVICES", path))
    if grouped(service) > 1:
        found += [_field("POD_NAME", "metadata.name"), _field("POD_NAMESPACE", "metadata.namespace")]
    return found


def _resources(config: Config, collect: Sequence[str]) -> Object:
    found: Object = {
        "requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}
    }  # fmt: skip
    if "gpu" in collect and settings(config).devices == "claim":
        found["claims"] = [{"name": settings(config).claim}]
    return found


def _security(collect: Sequence[str]) -> Object:
    """Without a user and a right of its own, but for NPUs: their device files are opened by root only."""
    if "npu" in collect:
        return {"privileged": True, "runAsUser": 0, "runAsNonRoot": False, "readOnlyRootFilesystem": True}
    return {
        "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip


def _mounts(service: Service, collect: Sequence[str]) -> list[Object]:
    found = []
    if "experts" in collect:
        source = service.sidecar.experts.source
        if source == "log":
            found.append({"name": "k3observe-log", "mountPath": LOG_DIR, "readOnly": True})
        if source == "plugin":
            found.append({"name": "k3observe-experts", "mountPath": PLUGIN_DIR, "readOnly": True})
    if "npu" in collect:
        found += [{"name": name, "mountPath": path, "readOnly": True} for name, path, _ in _DRIVER]
    return found


def volumes(service: Service, collect: Sequence[str]) -> list[Object]:
    """Volumes of the container: the driver of NPUs, and directories shared with the engine, bounded in size."""
    found: list[Object] = []
    if "experts" in collect:
        source = service.sidecar.experts.source
        if source == "log":
            found.append({"name": "k3observe-log", "emptyDir": {"sizeLimit": "1Gi"}})
        if source == "plugin":
            found.append({"name": "k3observe-experts", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}})
    if "npu" in collect:
        found += [{"name": name, "hostPath": {"path": path, "type": kind}} for name, path, kind in _DRIVER]
    return found
