"""Validation against published schemas: unknown fields are errors, as they are for ``kubectl apply``."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache

import pytest

from tools import setup_crds

_MODELS = {
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "monitoring.coreos.com/v1alpha1": "cloudcoil.models.prometheus_operator.v1alpha1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
}
_CHECK = """
import importlib, json, sys
def unknown(ours, theirs, path):
    if isinstance(ours, dict):
        for key, value in ours.items():
            if not isinstance(theirs, dict) or key not in theirs: yield f"{path}.{key}: unknown field"
            else: yield from unknown(value, theirs[key], f"{path}.{key}")
    elif isinstance(ours, list):
        for index, value in enumerate(ours): yield from unknown(value, theirs[index], f"{path}[{index}]")
def problems(module, document):
    kind = document["kind"]
    try:
        model = getattr(importlib.import_module(module), kind).model_validate(document)
    except ValueError as error:
        return [f"{kind} {document['metadata']['name']} {error}"]
    return list(unknown(document, model.model_dump(by_alias=True, exclude_unset=True, mode="json"), kind))
for line in sys.stdin:
    found = [text for module, document in json.loads(line) for text in problems(module, document)]
    print(json.dumps(found), flush=True)
"""


def problems(documents: Sequence[dict], version: str = "1.33") -> list[str]:
    """What the schemas of Kubernetes and of the operators say against these objects."""
    core = [item for item in documents if item["apiVersion"] not in _MODELS and not _victoria(item)]
    return [*_core(core, version), *_custom([item for item in documents if item["apiVersion"] in _MODELS]),
            *(line for item in documents if _victoria(item) for line in _victoria_problems(item))]  # fmt: skip


def _victoria(document: dict) -> bool:
    return document["apiVersion"].startswith("operator.victoriametrics.com/")


def _core(documents: Sequence[dict], version: str) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kubernetes_validate

    found = []
    for document in documents:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            found.append(f"{document['kind']} {document['metadata']['name']}: {path}: {error.message}")
    return found


def _custom(documents: Sequence[dict]) -> list[str]:
    if not documents:
        return []
    missing = setup_crds.problem()
    if missing:
        pytest.skip(missing)
    batch = []
    for document in documents:
        if document["kind"] == "ScaledObject":
            # of KEDA 2.17, one release after the models
            behavior = document["spec"]["fallback"].pop("behavior")
            assert behavior in ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
        batch.append((_MODELS[document["apiVersion"]], document))
    process = _models()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(batch) + "\n")
    process.stdin.flush()
    answer: list[str] = json.loads(process.stdout.readline())
    return answer


@cache
def _models() -> subprocess.Popen[str]:
    """One process that holds the models, which take seconds to load; it ends with its input, when the tests end."""
    script = f"import sys; sys.path.insert(0, {str(setup_crds.FOLDER)!r})\n{_CHECK}"
    command = [sys.executable, "-I", "-c", script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# No package holds the VictoriaMetrics operator's schemas: the fields of its v1beta1 documentation that we write.
_ENDPOINT = {"port", "portNumber", "path", "interval", "scrapeTimeout", "honorLabels", "honorTimestamps", "scheme",
             "follow_redirects", "relabelConfigs", "metricRelabelConfigs", "tlsConfig"}  # fmt: skip
_VICTORIA = {
    "VMRule": {"groups"},
    "VMPodScrape": {"selector", "namespaceSelector", "podMetricsEndpoints"},
    "VMScrapeConfig": {"path", "interval", "scrapeTimeout", "honorLabels", "honorTimestamps", "scheme",
                       "staticConfigs", "fileSDConfigs", "dnsSDConfigs", "relabelConfigs", "metricRelabelConfigs",
                       "tlsConfig"},
}  # fmt: skip


def _victoria_problems(document: dict) -> list[str]:
    unknown = document["spec"].keys() - _VICTORIA[document["kind"]]
    for endpoint in document["spec"].get("podMetricsEndpoints", []):
        unknown |= endpoint.keys() - _ENDPOINT
    return [f"{document['kind']}: {key}: unknown field" for key in sorted(unknown)]
