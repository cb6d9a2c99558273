"""A service: where its engines are, what its devices and sidecars are, and its objectives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from k3observe.config.alerts import AlertSettings
from k3observe.config.discovery import Discovery, KubernetesDiscovery
from k3observe.config.engine import Engine, Model
from k3observe.config.errors import FieldError, refuse_twice
from k3observe.config.section import Section
from k3observe.config.values import (
    AbsolutePath,
    HttpPath,
    LabelName,
    LabelValue,
    MountedPath,
    Name,
    Port,
    Quantity,
    Target,
    Url,
)

Quantile = Literal["p50", "p90", "p95", "p99"]


class Replicas(Section):
    """How many engines should be up, and within which bounds they scale."""

    expected: int | None = Field(
        None, ge=1, le=10_000, description="Engines that should be up; default the listed targets")
    min: int | None = Field(None, ge=1, le=10_000, description="Least replicas of the autoscaler")
    max: int | None = Field(None, ge=1, le=10_000, description="Most replicas of the autoscaler")
    step: int = Field(1, ge=1, le=10_000, description="Replicas added at once")

    @model_validator(mode="after")
    def _ordered(self) -> Replicas:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise FieldError(f"is above max {self.max}", ("min",), self.min)
        return self


class Accelerators(Section):
    """The devices of the service's nodes."""

    kind: Literal["nvidia", "ascend"] = Field("nvidia", description="NVIDIA GPUs or Ascend NPUs")
    per_node: int | None = Field(None, ge=1, le=1024, description="Devices every node should have (dies on an A3)")
    source: Literal["sidecar", "dcgm", "npu-exporter"] = Field(
        "sidecar", description="Who reads the devices: the sidecar, dcgm-exporter or npu-exporter")
    targets: list[Target] = Field([], description="Addresses of dcgm-exporter or npu-exporter")
    discovery: KubernetesDiscovery | None = Field(None, description="Pods of dcgm-exporter or npu-exporter")
    nodes: dict[str, Name] = Field({}, description="Host name to service, for collectors that several services share")
    hot: Quantity | None = Field(None, gt=30, lt=150, description="Temperature in celsius above which a device is hot")

    @model_validator(mode="after")
    def _source_fits(self) -> Accelerators:
        if (self.source, self.kind) in (("dcgm", "ascend"), ("npu-exporter", "nvidia")):
            raise FieldError(f"cannot read {self.kind} devices", ("source",), self.source)
        refuse_twice(("targets",), self.targets)
        return self


class SidecarExperts(Section):
    """Where the sidecar takes expert loads from."""

    source: Literal["log", "metrics", "file", "http", "plugin"] = Field(
        "log", description="The engine's log or metrics, counts as JSON in a file or over HTTP, or the plugin in vLLM")
    path: MountedPath | None = Field(
        None, description="The log, the file or the plugin's directory, as the sidecar sees it")
    url: Url | None = Field(None, description="Page of the sources http and metrics; default the engine's own metrics")


class Sidecar(Section):
    """The exporter beside each engine."""

    collect: list[Literal["gpu", "npu", "experts", "kv-cache"]] = Field(
        [], description="Collectors; an empty list means no sidecar")
    port: Port = Field(19303, description="Port of /metrics")
    targets: list[Target] = Field([], description="Addresses, where they are not the engines' hosts with this port")
    experts: SidecarExperts = Field(SidecarExperts(), description="Source of the collector experts")

    @model_validator(mode="after")
    def _each_once(self) -> Sidecar:
        for field in ("collect", "targets"):
            refuse_twice((field,), getattr(self, field))
        return self


class Slo(Section):
    """Objectives for latency and errors."""

    time_to_first_token: dict[Quantile, Quantity] = Field({}, description="Limits by quantile, e.g. {p99: 30s}")
    inter_token_latency: dict[Quantile, Quantity] = Field({}, description="Limits by quantile, e.g. {p99: 0.2s}")
    queue_time: dict[Quantile, Quantity] = Field({}, description="Limits by quantile, e.g. {p90: 10s}")
    errors: Quantity = Field(0.005, gt=0, lt=1, description="Share of requests that may fail")
    objective: Quantity = Field(0.99, gt=0, lt=1, description="Share of requests within the latencies")


class Service(Section):
    """A model behind one name, on engines of one kind."""

    name: Name = Field(description="Label service of all its series")
    engine: Engine = Field(description="What serves the model")
    model: Model = Field(Model(), description="What is served")
    role: Literal["unified", "prefill", "decode"] = Field(
        "unified", description="Part of a disaggregated service, else unified")
    targets: list[Target] = Field([], description="Addresses of the engines' /metrics, host:port")
    discovery: Discovery | None = Field(None, description="Where the addresses come from, instead of targets")
    metrics_path: HttpPath | None = Field(None, description="Path of the metrics; default by engine")
    scheme: Literal["http", "https"] | None = Field(None, description="How the engine is scraped; default http")
    tls_ca_file: AbsolutePath | None = Field(None, description="CA that signed the engine's certificate")
    replicas: Replicas = Field(Replicas(), description="How many engines should be up, and how far they scale")
    accelerators: Accelerators | None = Field(None, description="The devices; without it none is watched")
    sidecar: Sidecar = Field(Sidecar(), description="The exporter beside each engine")
    kv_source: Literal["engine", "sidecar"] = Field(
        "engine", description="Whose series the rules on the KV cache read; sidecar needs the collector kv-cache")
    slo: Slo = Field(Slo(), description="Objectives for latency and errors")
    labels: dict[LabelName, LabelValue] = Field({}, description="Extra target labels")
    alerts: dict[str, AlertSettings] = Field({}, description="Changes of alerts for this service alone")

    @model_validator(mode="after")
    def _consistent(self) -> Service:
        if bool(self.targets) == bool(self.discovery):
            raise ValueError("needs either targets or discovery")
        refuse_twice(("targets",), self.targets)
        self._experts_spread()
        if self.kv_source == "sidecar" and "kv-cache" not in self.sidecar.collect:
            raise FieldError("needs kv-cache in sidecar.collect", ("kv_source",), self.kv_source)
        return self

    def _experts_spread(self) -> None:
        """The balancer gives every rank as many experts, copies among them: engines do not start otherwise."""
        args, experts = self.engine.args, self.model.known.experts
        ranks = args.expert_parallel_size or args.tensor_parallel * (1 if args.dp_attention else args.data_parallel)
        copies = args.num_redundant_experts or 0
        spread = args.expert_parallel or args.expert_parallel_size
        if args.eplb and spread and experts is not None and (experts + copies) % ranks:
            raise FieldError(
                f"leaves {experts} experts with {copies} copies, which are no whole number on each of {ranks} ranks",
                ("engine", "args", "num_redundant_experts"), copies, f"use {-experts % ranks}, or {ranks} more")
