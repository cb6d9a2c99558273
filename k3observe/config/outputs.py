"""What is rendered besides the configuration of Prometheus and Alertmanager."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from k3observe.config.section import Section
from k3observe.config.values import Image, KubernetesKey, KubernetesValue, Line, Name, Quantity, Url
from k3observe.version import __version__


class Autoscaling(Section):
    """What scales the engines on load; the memory of devices counts only while there is load."""

    kind: Literal["hpa", "keda"] = Field("hpa", description="HPA with prometheus-adapter, or a KEDA ScaledObject")
    saturation: Quantity = Field(0.8, gt=0, le=1, description="Load at which a replica counts as full")
    waiting: Quantity | None = Field(
        None, gt=0, description="Waiting requests a replica may have; default half of max_num_seqs, at least 4")
    memory: Quantity | None = Field(
        None, gt=0, lt=1, description="Device memory above which one step is added, if saturation is high as well")
    prometheus_url: Url = Field("http://prometheus-operated:9090", description="Where KEDA asks")


class Kubernetes(Section):
    """Kubernetes objects."""

    namespace: Name = Field("monitoring", description="Where the monitoring objects live; engines may live elsewhere")
    release_label: KubernetesValue | None = Field(
        None, description="Label release, by which the operator selects objects")
    labels: dict[KubernetesKey, KubernetesValue] = Field({}, description="Further labels of every object")
    operator: Literal["prometheus", "victoria-metrics"] = Field(
        "prometheus", description="Whose objects are written: PodMonitor and PrometheusRule, or VMPodScrape and VMRule")
    alertmanager: Literal["secret", "config", "none"] = Field(
        "secret", description="A Secret with alertmanager.yaml, an AlertmanagerConfig, or neither")
    devices: Literal["node", "claim", "daemonset"] = Field(
        "node", description="Sidecars see their node's devices, those of a resource claim, or a DaemonSet reads them")
    claim: Name = Field("accelerators", description="The pod's resource claim, for devices: claim")
    runtime_class: Name | None = Field("nvidia", description="Runtime class of NVIDIA pods; null for the default one")
    node_selector: dict[KubernetesKey, KubernetesValue] = Field(
        {}, description="Nodes of the DaemonSet; default by accelerator")
    prometheus_namespace: Name | None = Field(
        None, description="From where the sidecars may be scraped; default namespace")
    dashboard_folder: Line = Field("K3", description="Grafana folder of the dashboards")
    autoscaling: Autoscaling | None = Field(None, description="Scale services that have replicas.max and a workload")


class Images(Section):
    """Container images that you built from images/ and pushed to a registry of yours."""

    exporter: Image = Field(f"k3observe-exporter:{__version__}", description="The sidecar")
    command: Image = Field(f"k3observe:{__version__}", description="k3observe and k3observe-notify")


def _switch(kind: type[Section]) -> Any:
    """Accept ``true`` and ``false`` for a section with defaults."""
    return BeforeValidator(lambda v: kind() if v is True else None if v is False else v)


class Outputs(Section):
    """What is rendered."""

    prometheus: Literal["full", "fragment"] = Field(
        "full", description="fragment: scrape file, rules and route for a Prometheus that exists already")
    grafana: bool = Field(True, description="Dashboards and provisioning")
    kubernetes: Annotated[Kubernetes | None, _switch(Kubernetes)] = Field(
        None, description="Objects for an operator; true for the defaults")
    compose: bool = Field(False, description="Containers of the servers and the sidecars")
    systemd: bool = Field(False, description="Units of the sidecars and of the bridge to robots")
    ruler: Literal["mimir"] | None = Field(None, description="All rules as one namespace of Mimir's ruler")
    images: Images = Field(Images(), description="Container images of the project")
