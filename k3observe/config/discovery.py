"""Where targets come from: Kubernetes, DNS or files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from k3observe.config.section import Section
from k3observe.config.values import DnsName, KubernetesKey, KubernetesValue, Name, Port, WatchedFiles


class Workload(Section):
    """The object whose pods run the engine: the sidecar is added to it, the autoscaler scales it."""

    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet"] = Field("Deployment", description="Its kind")
    name: Name = Field(description="Its name")
    container: Name | None = Field(None, description="The engine's container; default the engine's name")
    size: int = Field(1, ge=1, le=1024, description="Pods of one replica (LeaderWorkerSet)")


class KubernetesDiscovery(Section):
    """Pods of the engine, found through the Kubernetes API."""

    namespace: Name | None = Field(
        None, description="Namespace of the pods; default all, in Kubernetes objects that of outputs.kubernetes")
    selector: dict[KubernetesKey, KubernetesValue] = Field(min_length=1, description="Labels of all the service's pods")
    api: dict[KubernetesKey, KubernetesValue] | None = Field(
        None, description="Further labels of the pods that serve the API; default for a LeaderWorkerSet its worker 0, "
        "for SGLang every pod")
    port: Port | Name | None = Field(
        None, description="Container port, by number or name; default the usual one of the engine or exporter")
    workload: Workload | None = Field(
        None, description="What runs the pods; without it no sidecar is added and nothing is scaled")


class DnsDiscovery(Section):
    """Targets behind a DNS name."""

    names: list[DnsName] = Field(min_length=1, description="Names to look up")
    type: Literal["A", "AAAA", "SRV"] = Field("A", description="Type of the records")
    port: Port | None = Field(None, description="Port of the targets; SRV records name their own")

    @model_validator(mode="after")
    def _a_needs_port(self) -> DnsDiscovery:
        if self.type != "SRV" and self.port is None:
            raise ValueError("names no port, nor do A and AAAA records; add port: 8000")
        return self


class FileDiscovery(Section):
    """Targets in files that somebody else writes (file_sd)."""

    files: list[WatchedFiles] = Field(min_length=1, description="Paths as Prometheus sees them; * in the file name")


class Discovery(Section):
    """Where targets come from when they are not listed; exactly one."""

    kubernetes: KubernetesDiscovery | None = Field(None, description="Pods, through the Kubernetes API")
    dns: DnsDiscovery | None = Field(None, description="A DNS name")
    file: FileDiscovery | None = Field(None, description="Files that somebody else writes")

    @model_validator(mode="after")
    def _one(self) -> Discovery:
        if sum(x is not None for x in (self.kubernetes, self.dns, self.file)) != 1:
            raise ValueError("needs exactly one of kubernetes, dns, file")
        return self
