"""Engines that Kubernetes manifests and Compose files start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.launch_shell import Invocation, Place, expanded, publication, started
from k3observe.config.source import load_documents

_MARK = re.compile(r"^(?:apiVersion|services)[ \t]*:", re.M)
_WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DEVICES = ("nvidia.com/gpu", "huawei.com/Ascend910")


def is_manifest(text: str) -> bool:
    """Whether a text is YAML of Kubernetes or Compose rather than a script; templates of Helm are neither."""
    return not text.startswith("#!") and _MARK.search(text) is not None and "<<" not in text


def invocations(text: str, name: str) -> Iterator[Invocation]:
    """Every engine that the documents start; raises ConfigError with the line for bad YAML."""
    if "{{" in text:
        raise ConfigError([Problem("is a template of Helm", file=name, fix="render it first: helm template")])
    for document in load_documents(text, name):
        data = document.data
        if not isinstance(data, dict):
            continue
        if isinstance(data.get("services"), dict):
            for service in data["services"].values():
                yield from _composed(mapping(service), name)
        else:
            yield from _pods(data, data, name, {}, set())


def _composed(service: Mapping[str, Any], name: str) -> Iterator[Invocation]:
    published: dict[int, tuple[str, int]] = {}
    for item in items(service.get("ports")):
        if isinstance(item, dict):
            ports = [_number(item.get(field)) for field in ("target", "published")]
            if ports[0] and ports[1]:
                published[ports[0]] = (scalar(item.get("host_ip")), ports[1])
        else:
            published.update(publication(scalar(item)))
    known = _environment(service.get("environment"))
    words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
    host = service.get("network_mode") == "host"
    place = Place(scalar(service.get("image")), None if host else published)
    yield from started([expanded(word.replace("$$", "$"), known) for word in words], name, known, place, {})


def _pods(node: Any, document: Mapping[str, Any], name: str, labels: Mapping[str, Any], seen: set[int]
          ) -> Iterator[Invocation]:  # fmt: skip
    """Containers wherever a template of pods stands; the workers of a LeaderWorkerSet with a leader serve nothing.

    What aliases repeat is looked at once.
    """
    if id(node) in seen or not isinstance(node, dict | list):
        return
    seen.add(id(node))
    if isinstance(node, list):
        for item in node:
            yield from _pods(item, document, name, labels, seen)
        return
    document = node if "kind" in node and "metadata" in node else document  # an item of a List
    labels = mapping(mapping(node.get("metadata")).get("labels")) or labels
    for container in map(mapping, items(node.get("containers"))):
        yield from _contained(container, document, name, labels)
    for key, value in node.items():
        if key not in ("containers", "metadata") and not (key == "workerTemplate" and "leaderTemplate" in node):
            yield from _pods(value, document, name, labels, seen)


def _contained(container: Mapping[str, Any], document: Mapping[str, Any], name: str, labels: Mapping[str, Any]
               ) -> Iterator[Invocation]:  # fmt: skip
    known = {scalar(item.get("name")): scalar(item["value"]) for item in map(mapping, items(container.get("env")))
             if item.get("value") is not None}  # fmt: skip
    words = [scalar(word) for key in ("command", "args") for word in items(container.get(key))]
    ports = [_number(mapping(port).get("containerPort")) for port in items(container.get("ports"))]
    kind, metadata, spec = document.get("kind"), mapping(document.get("metadata")), mapping(document.get("spec"))
    limits = mapping(mapping(container.get("resources")).get("limits"))
    place = Place(
        scalar(container.get("image")), None, _discovery(kind, metadata, spec, container, labels),
        tuple(port for port in ports if port), _number(spec.get("replicas")),
        next((count for device in _DEVICES if (count := _number(limits.get(device)))), None),
    )  # fmt: skip
    yield from started([expanded(word, known) for word in words], name, known, place, {})


def _discovery(
    kind: Any, metadata: Mapping[str, Any], spec: Mapping[str, Any], container: Mapping[str, Any],
    labels: Mapping[str, Any],
) -> Mapping[str, Any] | None:  # fmt: skip
    """How the pods are found: by their labels, those of a LeaderWorkerSet by the one that its controller sets."""
    workload, namespace = scalar(metadata.get("name")), scalar(metadata.get("namespace"))
    if kind == "LeaderWorkerSet" and _LABEL.fullmatch(workload):
        labels = {"leaderworkerset.sigs.k8s.io/name": workload}
    selector = {key: scalar(value) for key, value in labels.items() if _LABEL.fullmatch(scalar(value))}
    if not selector:
        return None
    found: dict[str, Any] = {"namespace": namespace} if _LABEL.fullmatch(namespace) else {}
    found["selector"] = selector
    if kind in _WORKLOADS and _LABEL.fullmatch(workload):
        found["workload"] = {"kind": kind, "name": workload}
        if _LABEL.fullmatch(scalar(container.get("name"))):
            found["workload"]["container"] = container["name"]
        size = _number(mapping(spec.get("leaderWorkerTemplate")).get("size"))
        if kind == "LeaderWorkerSet" and size and size <= 1024:
            found["workload"]["size"] = size
    return found


def _environment(given: Any) -> dict[str, str]:
    if isinstance(given, dict):
        return {key: scalar(value) for key, value in given.items() if value is not None}
    return dict(scalar(item).split("=", 1) for item in items(given) if "=" in scalar(item))


def _words(given: Any) -> list[str]:
    """A command of Compose: a list, or a text that is split as a shell splits it."""
    if isinstance(given, list):
        return [scalar(word) for word in given]
    try:
        return shlex.split(scalar(given).replace("\\\n", " "))
    except ValueError:
        return []


def mapping(value: Any) -> Mapping[str, Any]:
    """A value if it is a mapping, else none."""
    return value if isinstance(value, dict) else {}


def scalar(value: Any) -> str:
    """A text or number as text, anything else as none: aliases can make the text of a list endless."""
    return str(value) if isinstance(value, str | int | float) else ""


def items(value: Any) -> list[Any]:
    """A value if it is a list, else none."""
    return value if isinstance(value, list) else []


def _number(value: Any) -> int | None:
    text = scalar(value)
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,4}", text) and int(text) < 65536 else None
