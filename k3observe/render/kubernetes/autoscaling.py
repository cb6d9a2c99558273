"""HPA with prometheus-adapter, or a KEDA ScaledObject: replicas follow load, never the memory of devices alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.model import Autoscaling, Service, Workload
from k3observe.plan import Plan
from k3observe.render.kubernetes.component import LWS_API
from k3observe.render.kubernetes.objects import (
    Object,
    dns_name,
    engine_namespace,
    file,
    kubernetes_discovery,
    named,
    settings,
)
from k3observe.render.selector import quoted
from k3observe.render.text import header, to_yaml

_LONGEST_PERIOD, _LONGEST_WINDOW = 1800, 3600
"""Bounds of the HPA's own fields periodSeconds and stabilizationWindowSeconds."""

_MEMORY = ("saturation", "accelerator_memory_usage")

_NOTE = """\
Each metric is the work of the whole service, divided by what one replica may carry (AverageValue): replicas follow it
directly, whatever share of them is still loading. The largest answer of the metrics wins. Without an answer from any
metric the HPA keeps the replicas; with some it may add but not remove."""
_KEDA = """
KEDA 2.17 or newer: when Prometheus cannot be asked, or answers nothing, fallback holds the replicas."""
_ADAPTER = """\
Values for the chart of prometheus-adapter (rules.external), or the same list for its configuration file."""


@dataclass(frozen=True)
class Metric:
    """A query that returns one element, and the part of it that one replica may carry."""

    name: str
    query: str
    per_replica: float


def scaled(plan: Plan) -> Iterator[tuple[Service, Workload, Autoscaling]]:
    """Services that are scaled: those with an object to scale and an upper bound."""
    autoscaling = settings(plan.config).autoscaling
    if autoscaling is None:
        return
    for service in plan.config.services:
        kube = kubernetes_discovery(service)
        if kube is not None and kube.workload is not None and service.replicas.max is not None:
            yield service, kube.workload, autoscaling


def metrics(plan: Plan, service: Service, workload: Workload, autoscaling: Autoscaling) -> list[Metric]:
    """What the replicas follow: saturation, queue, and memory only while saturation is near its limit too.

    Raises ConfigError where the engine tells none of them.
    """
    stack, names = plan.config.stack, f"stack={quoted(plan.config.stack)}, service={quoted(service.name)}"
    # pods of one replica are several targets where each serves an API (SGLang)
    pods = workload.size if service.engine.name == "sglang" else 1
    replicas = f"sum(k3:engine_up:bool{{{names}}})" + (f" / {pods}" if pods > 1 else "")
    saturation = f"max(k3:saturation:ratio{{{names}}})"
    limit = autoscaling.saturation
    facts = plan.facts[service.name]
    waiting = autoscaling.waiting or max(4.0, 0.5 * (facts["max_num_seqs"] or 0))

    def metric(what: str, query: str, per_replica: float) -> Metric:
        return Metric(dns_name("k3", stack, service.name, what).replace("-", "_"), query, per_replica)

    found = []
    if plan.has(service.name, "saturation"):
        found.append(metric("load", f"{saturation} * {replicas}", limit))
    if plan.has(service.name, "requests_waiting"):
        found.append(metric("waiting", f"sum(k3:requests_waiting:count{{{names}}})", waiting))
    if autoscaling.memory is not None and all(plan.has(service.name, need) for need in _MEMORY):
        memory = f"max(k3:accelerator_memory_usage:ratio{{{names}}}) > {autoscaling.memory:g}"
        busy = f"{saturation} > {0.75 * limit:g}"
        query = f"(({memory}) and ({busy})) * 0 + {replicas} + {service.replicas.step} or {replicas}"
        found.append(metric("memory", query, 1.0))
    if not found:
        raise ConfigError([Problem(f"the service {service.name} tells neither load nor a queue to scale by",
                                   ("outputs", "kubernetes", "autoscaling"), autoscaling.kind,
                                   "see `k3observe explain`, or leave out its replicas.max")])  # fmt: skip
    return found


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield what the configuration chose."""
    config, found, rules = plan.config, [], []
    for service, workload, autoscaling in scaled(plan):
        chosen = metrics(plan, service, workload, autoscaling)
        if autoscaling.kind == "keda":
            found.append(_scaled_object(plan, service, workload, autoscaling, chosen))
        else:
            found.append(_hpa(plan, service, workload, chosen))
            rules += [_adapter_rule(metric) for metric in chosen]
    if not found:
        return
    keda = bool(found[0]["kind"] == "ScaledObject")
    yield "autoscaling.yaml", file(config, found, _NOTE + (_KEDA if keda else ""))
    if rules:
        note = "".join(f"# {line}\n" for line in _ADAPTER.splitlines())
        values = to_yaml({"rules": {"external": rules}})
        yield "prometheus-adapter/values.yaml", (header(config) + note + values).encode()


def _target(workload: Workload) -> Object:
    api = LWS_API if workload.kind == "LeaderWorkerSet" else "apps/v1"
    return {"apiVersion": api, "kind": workload.kind, "name": workload.name}


def _bounds(service: Service) -> tuple[int, int]:
    least = service.replicas.min or service.replicas.expected or 1
    return least, max(least, service.replicas.max or least)


def _behavior(plan: Plan, service: Service) -> Object:
    """One step per loading time up, one replica down after an hour of less load: a model loads for up to an hour."""
    grace = int(plan.facts[service.name]["startup_grace"].seconds)
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 60,
            "policies": [
                {"type": "Pods", "value": service.replicas.step, "periodSeconds": max(60, min(grace, _LONGEST_PERIOD))}
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": max(600, min(grace, _LONGEST_WINDOW)),
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": max(600, min(grace, _LONGEST_PERIOD))}],
        },
    }


def _hpa(plan: Plan, service: Service, workload: Workload, chosen: list[Metric]) -> Object:
    config = plan.config
    least, most = _bounds(service)
    head = named(config, "autoscaling/v2", "HorizontalPodAutoscaler", dns_name(config.stack, service.name),
                 engine_namespace(config, service))  # fmt: skip
    return {
        **head,
        "spec": {
            "scaleTargetRef": _target(workload),
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {"name": metric.name},
                        "target": {"type": "AverageValue", "averageValue": _quantity(metric.per_replica)},
                    },
                }
                for metric in chosen
            ],
            "behavior": _behavior(plan, service),
        },
    }


def _quantity(value: float) -> str:
    """A Kubernetes quantity: ``0.8`` is ``800m``."""
    return str(int(value)) if value == int(value) else f"{round(value * 1000)}m"


def _adapter_rule(metric: Metric) -> Object:
    """A metric for every namespace, worked out by the adapter; the query is whole, so that labels need no mapping."""
    return {
        "seriesQuery": metric.query[metric.query.index("k3:"): metric.query.index("}") + 1],
        "resources": {"namespaced": False},
        "name": {"as": metric.name},
        "metricsQuery": metric.query,
    }


def _scaled_object(
    plan: Plan, service: Service, workload: Workload, autoscaling: Autoscaling, chosen: list[Metric]
) -> Object:
    config = plan.config
    least, most = _bounds(service)
    head = named(config, "keda.sh/v1alpha1", "ScaledObject", dns_name(config.stack, service.name),
                 engine_namespace(config, service))  # fmt: skip
    return {
        **head,
        "spec": {
            "scaleTargetRef": _target(workload),
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "pollingInterval": 30,
            # for scaling to zero only, which an engine that loads for so long never does; else _behavior decides
            "cooldownPeriod": int(plan.facts[service.name]["startup_grace"].seconds),
            "fallback": {
                "failureThreshold": 4,
                "replicas": max(least, service.replicas.expected or least),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(plan, service)}},
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": autoscaling.prometheus_url,
                        "query": metric.query,
                        "threshold": f"{metric.per_replica:g}",
                        # nothing to read is a failure, which leads to the fallback, and no load of zero
                        "ignoreNullValues": "false",
                    },
                }
                for metric in chosen
            ],
        },
    }
