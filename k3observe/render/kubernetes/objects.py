"""What all Kubernetes objects share: names, labels, files of one or more documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from k3observe.config.model import Config, Kubernetes, KubernetesDiscovery, Service
from k3observe.render.text import header, to_yaml

Object = dict[str, Any]
FOLDER = "kubernetes"


def settings(config: Config) -> Kubernetes:
    """The section ``outputs.kubernetes``, which is there whenever these modules are asked."""
    assert config.outputs.kubernetes is not None
    return config.outputs.kubernetes


def dns_name(*parts: str) -> str:
    """A name that Kubernetes takes (RFC 1123 label): lower case, cut to 63 characters with a hash where longer.

    A part that repeats stands once: a service is often named as its stack.
    """
    plain = "-".join(dict.fromkeys(parts))
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    return name if len(name) <= 63 else f"{name[:54].rstrip('-')}-{sha256(plain.encode()).hexdigest()[:8]}"


def labels(config: Config, **own: str) -> dict[str, str]:
    """Labels of an object: who made it, for which stack, the operator's selector, then the user's."""
    kubernetes = settings(config)
    return {
        "app.kubernetes.io/part-of": "k3observe",
        "app.kubernetes.io/instance": config.stack,
        "app.kubernetes.io/managed-by": "k3observe",
        **({"release": kubernetes.release_label} if kubernetes.release_label else {}),
        **dict(sorted(kubernetes.labels.items())),
        **own,
    }


def named(
    config: Config, api: str, kind: str, name: str, namespace: str | None = None, annotations: Mapping[str, str] = {},
) -> Object:  # fmt: skip
    """The head of an object; ``namespace`` where it is not that of the monitoring objects."""
    metadata: Object = {
        "name": name, "namespace": namespace or settings(config).namespace, "labels": labels(config)
    }  # fmt: skip
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def file(config: Config, objects: Iterable[Object], note: str = "") -> bytes:
    """One file of several documents, ``note`` as a comment above them."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    return (header(config) + comment + "---\n".join(to_yaml(item) for item in objects)).encode()


def kubernetes_discovery(service: Service) -> KubernetesDiscovery | None:
    """How a service's pods are found, if they are."""
    return service.discovery.kubernetes if service.discovery is not None else None


def engine_namespace(config: Config, service: Service) -> str:
    """Where the engine's pods live."""
    kube = kubernetes_discovery(service)
    return (kube.namespace if kube else None) or settings(config).namespace
