"""A DaemonSet that reads the devices of each node, where sidecars cannot see just those of their own pod."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.plan import Plan
from k3observe.render import pods
from k3observe.render.kubernetes.container import container, volumes
from k3observe.render.kubernetes.objects import Object, dns_name, file, labels, named, settings

_NODES = {"nvidia": {"nvidia.com/gpu.present": "true"}, "ascend": {"accelerator": "huawei-Ascend910"}}
_COLLECT = {"nvidia": ["gpu"], "ascend": ["npu"]}
_NOTE = """\
Reads all devices of a node. Which service a node serves is said by accelerators.nodes, and written by relabeling; the
number of devices that every node should have is that of the first service of its kind."""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield the DaemonSets, if the configuration asks for them."""
    config = plan.config
    if settings(config).devices != "daemonset":
        return
    found = []
    for kind, collect in _COLLECT.items():
        service = next(pods.daemonset_services(config, kind), None)
        if service is not None:
            name = f"{pods.DEVICES}-{kind}"
            own = {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": config.stack}
            runtime = settings(config).runtime_class if kind == "nvidia" else None
            spec: Object = {
                **({"runtimeClassName": runtime} if runtime else {}),
                "nodeSelector": dict(settings(config).node_selector or _NODES[kind]),
                # nodes with accelerators are kept for those who ask for one
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "containers": [_own(container(plan, service, collect))],
                **({"volumes": mounted} if (mounted := volumes(service, collect)) else {}),
            }
            template = {"metadata": {"labels": labels(config, **own)}, "spec": spec}
            found.append({
                **named(config, "apps/v1", "DaemonSet", dns_name(config.stack, name)),
                "spec": {
                    "selector": {"matchLabels": own},
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
                    "template": template,
                },
            })  # fmt: skip
    if found:
        yield "daemonset.yaml", file(config, found, _NOTE)


def _own(sidecar: Object) -> Object:
    """Alone in its pod it may say when it is ready."""
    port = sidecar["ports"][0]["name"]
    return {**sidecar, "readinessProbe": {"httpGet": {"path": "/-/healthy", "port": port}, "periodSeconds": 10}}
