"""The schema of ``k3observe.yaml``.

Every field of the file has its default and a description, which ``k3observe schema`` prints for editors and
docs/configuration.md lists. Validation that needs the catalogue or the alert rules (bounds of a threshold, say) is done
by the plan.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from k3observe.config.alerts import AlertSettings
from k3observe.config.discovery import Discovery, KubernetesDiscovery, Workload
from k3observe.config.errors import FieldError, Path, refuse_twice
from k3observe.config.notify import Alertmanager, Notify, Receiver
from k3observe.config.outputs import Autoscaling, Kubernetes, Outputs
from k3observe.config.prometheus import Prometheus, RemoteWrite
from k3observe.config.section import Section
from k3observe.config.service import Accelerators, Service
from k3observe.config.values import LabelName, LabelValue, Line, MetricName, Name, Url

__all__ = [
    "Accelerators",
    "AlertSettings",
    "Autoscaling",
    "Config",
    "Discovery",
    "Kubernetes",
    "KubernetesDiscovery",
    "Receiver",
    "RemoteWrite",
    "Service",
    "Workload",
]

OWN_LABELS = frozenset(
    {"stack", "service", "role", "job", "instance", "engine", "severity", "action", "alertname", "le"}
)


class Config(Section):
    """The whole of ``k3observe.yaml``."""

    version: Literal[1] = Field(description="Version of this format")
    stack: Name = Field(description="Name of the stack: label, prefix of files and dashboards")
    services: list[Service] = Field(min_length=1, description="What is watched")
    language: Literal["en", "zh-CN"] = Field("en", description="Of annotations, runbooks and dashboards")
    external_labels: dict[LabelName, LabelValue] = Field(
        {}, description="Labels of everything this Prometheus sends, e.g. {cluster: hz-a}")
    identity_labels: list[LabelName] = Field([], description="Labels kept in every aggregation, e.g. [cluster]")
    runbook_base_url: Url | None = Field(None, description="Where you publish runbooks/; alerts link to it")
    grafana_url: Url | None = Field(None, description="Your Grafana; alerts link to its dashboards")
    prometheus: Prometheus = Field(Prometheus(), description="The Prometheus that reads the bundle")
    alertmanager: Alertmanager = Field(Alertmanager(), description="The Alertmanager that reads the bundle")
    alerts: dict[str, AlertSettings] = Field({}, description="Changes of shipped alerts, by name")
    notify: Notify = Field(Notify(), description="Who is told what")
    outputs: Outputs = Field(Outputs(), description="What is rendered")
    aliases: dict[MetricName, MetricName] = Field(
        {}, description="Signals recorded under a second name, e.g. {expert_load_variance: vllm_expert_load_variance}")
    catalogue: list[Line] = Field([], description="Files with engines or signals of your own, relative to this file")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [service.name for service in self.services]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise FieldError("stands twice", ("services", index, "name"), name, "give each service its own name")
        refuse_twice(("identity_labels",), self.identity_labels)
        files = [re.sub(r"[^a-z0-9]+", "-", name.lower()) for name in names]
        for index, name in enumerate(files):
            if name in files[:index]:
                other = names[files.index(name)]
                raise FieldError(f"differs from {other!r} in case or punctuation only, which names of objects and "
                                 "files do not keep apart", ("services", index, "name"), names[index])
        for service in self.services:
            unknown = set(service.accelerators.nodes.values()) - set(names) if service.accelerators else ()
            if unknown:
                raise ValueError(f"accelerators.nodes of {service.name!r} names no service: {min(unknown)!r}")
        places: list[tuple[Path, str]] = [(("external_labels", name), name) for name in self.external_labels]
        places += [(("identity_labels", index), name) for index, name in enumerate(self.identity_labels)]
        places += [(("alerts", alert, "labels", name), name)
                   for alert, setting in self.alerts.items() for name in setting.labels]
        for index, service in enumerate(self.services):
            places += [(("services", index, "labels", name), name) for name in service.labels]
            places += [(("services", index, "alerts", alert, "labels", name), name)
                       for alert, setting in service.alerts.items() for name in setting.labels]
        for path, name in places:
            if name.lower() in ("nan", "inf"):
                raise FieldError("is a number to PromQL, which therefore takes it for no label", path, name)
            if name in OWN_LABELS:
                raise FieldError("is a label of k3observe's own", path, name, "choose another name")
        return self
