"""k3observe-notify in the cluster, where a receiver is a group robot."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.config.model import Config
from k3observe.render.kubernetes.objects import Object, file, labels, named

NAME, PORT = "k3observe-notify", 19304
_NOTE = """\
Reads notify.yaml and the robots' tokens from the Secret k3observe-notify, which you make:
  kubectl create secret generic k3observe-notify --from-file=notify.yaml --from-file=ops-cn.token
Alertmanager reaches it as http://k3observe-notify.{namespace}:19304/<robot>: receivers.<name>.robot.bridge."""


def robots(config: Config) -> bool:
    """Whether any receiver is a group robot."""
    return any(receiver.robot is not None for receiver in config.notify.receivers.values())


def files(config: Config) -> Iterator[tuple[str, bytes]]:
    """Yield the bridge, if a receiver needs it."""
    if robots(config):
        service = named(config, "v1", "Service", NAME)
        note = _NOTE.format(namespace=service["metadata"]["namespace"])
        own = {"app.kubernetes.io/name": NAME}
        port = {"name": "http", "port": PORT, "targetPort": "http"}
        service["spec"] = {"selector": own, "ports": [port]}
        yield "notify.yaml", file(config, [_deployment(config, own), service], note)


def _deployment(config: Config, own: dict[str, str]) -> Object:
    container = {
        "name": NAME,
        "image": config.outputs.images.command,
        "command": ["k3observe-notify"],
        "args": ["--config.file=/etc/k3observe/notify.yaml", f"--web.listen-address=0.0.0.0:{PORT}"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": {"httpGet": {"path": "/-/healthy", "port": "http"}},
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "http"}},
        "resources": {"requests": {"cpu": "20m", "memory": "48Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/k3observe", "readOnly": True}],
    }  # fmt: skip
    return {
        **named(config, "apps/v1", "Deployment", NAME),
        "spec": {
            "replicas": 1,
            # two would send each message twice
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": labels(config, **own)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "securityContext": {
                        "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": [{"name": "config", "secret": {"secretName": NAME, "defaultMode": 0o440}}],
                },
            },
        },
    }  # fmt: skip
