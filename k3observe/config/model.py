"""The schema of ``k3observe.yaml``.

Every field of the file is here with its default and a description, which is also what ``k3observe schema`` prints for
editors. Validation that needs the catalogue or the alert rules (bounds of a threshold, say) is done by the plan.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from k3observe.config.errors import FieldError, Path, did_you_mean
from k3observe.config.presets import PRESETS, Preset
from k3observe.config.values import (
    AbsolutePath,
    Duration,
    EngineVersion,
    HeaderName,
    HttpPath,
    Image,
    LabelName,
    LabelValue,
    MetricName,
    Name,
    Port,
    Quantity,
    Target,
    TimeRange,
    Url,
    Weekdays,
    Zone,
)
from k3observe.version import __version__

OWN_LABELS = frozenset(
    {"stack", "service", "role", "job", "instance", "engine", "severity", "action", "alertname", "le"}
)

Severity = Literal["critical", "warning", "info", "none"]
Route = Literal[
    "scale_out", "rebalance", "replace_device", "restart_engine", "investigate", "critical", "warning", "info"
]
Role = Literal["unified", "prefill", "decode"]
Language = Literal["en", "zh-CN"]
Collect = Literal["gpu", "npu", "experts", "kv-cache"]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, ignored_types=(cached_property,))


class Model(Section):
    """The model a service serves."""

    preset: str | None = Field(None, description="Known model: " + ", ".join(sorted(PRESETS)))
    served_name: str | None = Field(None, description="Name under which the engine serves it (label model_name)")
    moe_layers: int | None = Field(None, ge=1, description="MoE layers")
    experts: int | None = Field(None, ge=1, description="Routed experts per layer")
    top_k: int | None = Field(None, ge=1, description="Experts per token")
    startup_grace: Duration | None = Field(None, description="Time the engine may take to load the model")

    @model_validator(mode="after")
    def _preset_is_known(self) -> Model:
        if self.preset is not None and self.preset not in PRESETS:
            raise FieldError("is no known preset", ("preset",), self.preset, did_you_mean(self.preset, PRESETS))
        return self

    @property
    def known(self) -> Preset:
        """The preset with what the configuration says instead."""
        base = PRESETS.get(self.preset or "", Preset())
        own = {k: v for k in ("moe_layers", "experts", "top_k", "startup_grace") if (v := getattr(self, k)) is not None}
        return base._replace(**own)


class EngineArgs(Section):
    """Launch flags of the engine that change what is watched; names as vLLM spells them."""

    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Share of device memory the engine reserves (SGLang: --mem-fraction-static)")
    max_num_seqs: int | None = Field(
        None, ge=1, description="Requests that run at once (SGLang: --max-running-requests)")
    max_model_len: int | None = Field(None, ge=1, description="Context length in tokens")
    tensor_parallel: int = Field(1, ge=1)
    pipeline_parallel: int = Field(1, ge=1)
    data_parallel: int = Field(1, ge=1)
    dp_attention: bool = Field(False, description="SGLang --enable-dp-attention")
    expert_parallel: bool = Field(False, description="Experts are spread over the ranks")
    expert_parallel_size: int | None = Field(
        None, ge=1, description="Ranks of the expert-parallel group (SGLang --ep-size); default tensor x data parallel")
    eplb: bool = Field(False, description="Expert-parallel load balancer on")
    eplb_log_balancedness: bool = Field(False, description="vLLM logs the balance of experts")
    num_redundant_experts: int | None = Field(None, ge=0)
    balancedness_report: Literal["off", "server_log", "prometheus", "both"] = Field(
        "off", description="SGLang --expert-balancedness-report-mode")
    prefix_caching: bool | None = Field(None, description="Prefix cache on; default by engine and model")
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    block_size: int | None = Field(None, ge=1, description="Tokens per KV block")
    api_servers: int = Field(1, ge=1, description="vLLM --api-server-count")
    enable_metrics: bool = Field(True, description="SGLang --enable-metrics, MindIE MIES_SERVICE_MONITOR_MODE=1")
    kv_offload: bool = Field(
        False, description="A connector offloads KV blocks (vLLM) or hierarchical cache is on (SGLang)")
    admission_limits: bool = Field(False, description="vLLM --max-num-queued-reqs or --max-num-queued-tokens")
    rust_frontend: bool = Field(False, description="vLLM VLLM_USE_RUST_FRONTEND=1")


class Engine(Section):
    """The serving engine and its version."""

    name: str = Field(description="vllm, sglang, vllm-ascend, mindie, generic, or one of your own catalogue")
    version: EngineVersion | None = Field(None, description="Version, in quotes; default the newest known")
    args: EngineArgs = EngineArgs()


class Workload(Section):
    """The object whose pods run the engine: the sidecar is added to it, the autoscaler scales it."""

    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet"] = "Deployment"
    name: Name
    container: Name | None = Field(None, description="The engine's container; default the engine's name")
    size: int = Field(1, ge=1, le=1024, description="Pods of one replica (LeaderWorkerSet)")


class KubernetesDiscovery(Section):
    """Pods of the engine, found through the Kubernetes API."""

    namespace: Name | None = None
    selector: dict[str, LabelValue] = Field(min_length=1, description="Labels of all the service's pods")
    api: dict[str, LabelValue] | None = Field(
        None, description="Further labels of the pods that serve the API; default for a LeaderWorkerSet its worker 0, "
        "for SGLang every pod")
    port: Port | Name = Field(8000, description="Container port, by number or name")
    workload: Workload | None = None


class DnsDiscovery(Section):
    """Targets behind a DNS name."""

    names: list[Name] = Field(min_length=1)
    type: Literal["A", "AAAA", "SRV"] = "A"
    port: Port | None = Field(None, description="Port for A and AAAA records")

    @model_validator(mode="after")
    def _a_needs_port(self) -> DnsDiscovery:
        if self.type != "SRV" and self.port is None:
            raise ValueError("names no port, nor do A and AAAA records; add port: 8000")
        return self


class FileDiscovery(Section):
    """Targets in files that somebody else writes (file_sd)."""

    files: list[AbsolutePath] = Field(min_length=1)


class Discovery(Section):
    """Where targets come from when they are not listed; exactly one."""

    kubernetes: KubernetesDiscovery | None = None
    dns: DnsDiscovery | None = None
    file: FileDiscovery | None = None

    @model_validator(mode="after")
    def _one(self) -> Discovery:
        if sum(x is not None for x in (self.kubernetes, self.dns, self.file)) != 1:
            raise ValueError("needs exactly one of kubernetes, dns, file")
        return self


class Replicas(Section):
    """How many engines should be up, and within which bounds they scale."""

    expected: int | None = Field(None, ge=1, description="Engines that should be up; default the listed targets")
    min: int | None = Field(None, ge=1, description="Least replicas of the autoscaler")
    max: int | None = Field(None, ge=1, description="Most replicas of the autoscaler")
    step: int = Field(1, ge=1, description="Replicas added at once")

    @model_validator(mode="after")
    def _ordered(self) -> Replicas:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise FieldError(f"is above max {self.max}", ("min",), self.min)
        return self


class Accelerators(Section):
    """The devices of the service's nodes."""

    kind: Literal["nvidia", "ascend"] = "nvidia"
    per_node: int | None = Field(None, ge=1, le=1024, description="Devices every node should have (dies on an A3)")
    source: Literal["sidecar", "dcgm", "npu-exporter"] = "sidecar"
    targets: list[Target] = Field([], description="Addresses of dcgm-exporter or npu-exporter")
    discovery: KubernetesDiscovery | None = Field(None, description="Pods of dcgm-exporter or npu-exporter")
    nodes: dict[str, Name] = Field({}, description="Host name to service, for collectors that several services share")
    hot: Quantity | None = Field(None, description="Temperature in celsius above which a device is hot")

    @model_validator(mode="after")
    def _source_fits(self) -> Accelerators:
        if (self.source, self.kind) in (("dcgm", "ascend"), ("npu-exporter", "nvidia")):
            raise FieldError(f"cannot read {self.kind} devices", ("source",), self.source)
        return self


class SidecarExperts(Section):
    """Where the sidecar takes expert loads from."""

    source: Literal["log", "metrics", "file", "http", "plugin"] = "log"
    path: AbsolutePath | None = Field(
        None, description="The log, the file or the plugin's directory, as the sidecar sees it")
    url: Url | None = Field(None, description="Page of the sources http and metrics; default the engine's own metrics")


class Sidecar(Section):
    """The exporter beside each engine."""

    collect: list[Collect] = Field([], description="Collectors; an empty list means no sidecar")
    port: Port = 19303
    targets: list[Target] = Field([], description="Addresses, where they are not the engines' hosts with this port")
    experts: SidecarExperts = SidecarExperts()


class Slo(Section):
    """Objectives for latency and errors."""

    time_to_first_token: dict[Literal["p50", "p90", "p95", "p99"], Quantity] = Field({}, description="e.g. {p99: 30s}")
    inter_token_latency: dict[Literal["p50", "p90", "p95", "p99"], Quantity] = {}
    queue_time: dict[Literal["p50", "p90", "p95", "p99"], Quantity] = {}
    errors: Quantity = Field(0.005, gt=0, lt=1, description="Share of requests that may fail")
    objective: Quantity = Field(0.99, gt=0, lt=1, description="Share of requests within the latencies")


class AlertSettings(Section):
    """What differs from the shipped alert."""

    enabled: bool | None = None
    threshold: Quantity | None = None
    for_: Duration | None = Field(None, alias="for")
    keep_firing_for: Duration | None = None
    window: Duration | None = None
    severity: Severity | None = None
    params: dict[Name, Quantity] = Field({}, description="Further numbers of the alert, e.g. {worst: 1.0}")
    codes: list[Annotated[int, Field(ge=0, le=100_000)]] | None = Field(
        None, min_length=1, max_length=100, description="Error codes (XID) that count")
    labels: dict[LabelName, LabelValue] = Field({}, description="Extra labels, for your own routing")
    annotations: dict[LabelName, str] = {}


class Service(Section):
    """A model behind one name, on engines of one kind."""

    name: Name
    engine: Engine
    model: Model = Model()
    role: Role = "unified"
    targets: list[Target] = []
    discovery: Discovery | None = None
    metrics_path: HttpPath | None = None
    scheme: Literal["http", "https"] | None = None
    tls_ca_file: AbsolutePath | None = Field(None, description="CA that signed the engine's certificate")
    replicas: Replicas = Replicas()
    accelerators: Accelerators | None = None
    sidecar: Sidecar = Sidecar()
    kv_source: Literal["engine", "sidecar"] = "engine"
    slo: Slo = Slo()
    labels: dict[LabelName, LabelValue] = Field({}, description="Extra target labels")
    alerts: dict[str, AlertSettings] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Service:
        if bool(self.targets) == bool(self.discovery):
            raise ValueError("needs either targets or discovery")
        for index, target in enumerate(self.targets):
            if target in self.targets[:index]:
                raise FieldError("stands twice", ("targets", index), target, "keep one of them")
        if self.kv_source == "sidecar" and "kv-cache" not in self.sidecar.collect:
            raise FieldError("needs kv-cache in sidecar.collect", ("kv_source",), self.kv_source)
        return self


class Prometheus(Section):
    """The Prometheus that reads the bundle."""

    version: EngineVersion = "2.42"
    scrape_interval: Duration = Duration("15s")
    scrape_timeout: Duration | None = None
    evaluation_interval: Duration = Duration("15s")
    shards: int = Field(1, ge=1, le=64)
    alertmanagers: list[Target] = ["127.0.0.1:9093"]
    remote_write: list[RemoteWrite] = []

    @model_validator(mode="after")
    def _timeout_fits(self) -> Prometheus:
        for name in ("scrape_interval", "evaluation_interval"):
            if not 1 <= getattr(self, name).seconds <= 600:
                raise FieldError("is outside 1s to 10m", (name,), str(getattr(self, name)))
        if self.timeout.seconds > self.scrape_interval.seconds:
            raise FieldError(
                f"is longer than scrape_interval {self.scrape_interval}, which Prometheus refuses",
                ("scrape_timeout",), str(self.timeout), f"use at most {self.scrape_interval}")  # fmt: skip
        return self

    @property
    def timeout(self) -> Duration:
        """The scrape timeout: as given, else the interval, at most 10 s."""
        return self.scrape_timeout or Duration.of(min(10, self.scrape_interval.seconds))


class Queue(Section):
    """How samples wait for a store; what is left out is Prometheus's default."""

    capacity: int | None = Field(None, ge=1, description="Samples that wait, each shard")
    max_shards: int | None = Field(None, ge=1, description="Parallel senders")
    max_samples_per_send: int | None = Field(None, ge=1)
    batch_send_deadline: Duration | None = None
    max_backoff: Duration | None = None


class RemoteWrite(Section):
    """A store that receives the samples: Mimir, Thanos Receive, VictoriaMetrics or a managed service."""

    url: Url
    basic_auth_user: str | None = None
    password_file: AbsolutePath | None = None
    bearer_token_file: AbsolutePath | None = None
    tls_ca_file: AbsolutePath | None = None
    headers: dict[HeaderName, LabelValue] = Field({}, description="e.g. {X-Scope-OrgID: k3}")
    series: Literal["all", "recorded"] = Field("all", description="recorded: only k3: series, alerts and up")
    queue: Queue = Queue()

    @model_validator(mode="after")
    def _authenticates_one_way(self) -> RemoteWrite:
        if bool(self.basic_auth_user) != bool(self.password_file):
            raise ValueError("basic auth needs both basic_auth_user and password_file")
        if self.password_file and self.bearer_token_file:
            raise ValueError("takes basic auth or a bearer token, not both")
        return self


Prometheus.model_rebuild()


class Alertmanager(Section):
    """The Alertmanager that reads the bundle."""

    version: EngineVersion = "0.25"


class Webhook(Section):
    """Alertmanager's generic webhook."""

    url: Url | None = None
    url_file: AbsolutePath | None = None
    send_resolved: bool = True


class Robot(Section):
    """A DingTalk, Feishu or WeCom robot behind k3observe-notify."""

    bridge: Url


class PagerDuty(Section):
    """PagerDuty's events API v2."""

    routing_key_file: AbsolutePath


class Slack(Section):
    """Slack's incoming webhook."""

    api_url_file: AbsolutePath
    channel: str | None = None


class Email(Section):
    """Mail over SMTP."""

    to: str
    from_: str = Field(alias="from")
    smarthost: Target
    auth_username: str | None = None
    auth_password_file: AbsolutePath | None = None


class WeCom(Section):
    """WeCom (企业微信) application messages, Alertmanager's native receiver."""

    corp_id: str
    agent_id: str
    api_secret_file: AbsolutePath
    to_party: str | None = None
    to_user: str | None = None


class Receiver(Section):
    """Where notifications go; one or more ways."""

    webhook: Webhook | None = None
    robot: Robot | None = None
    pagerduty: PagerDuty | None = None
    slack: Slack | None = None
    email: Email | None = None
    wecom: WeCom | None = None

    @model_validator(mode="after")
    def _some(self) -> Receiver:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("needs one of " + ", ".join(type(self).model_fields))
        return self


class Mute(Section):
    """A time in which notifications are held back (Alertmanager time_intervals)."""

    weekdays: list[Weekdays] = Field([], description="e.g. [saturday, monday:friday]; empty: every day")
    times: list[TimeRange] = Field([], description='e.g. ["02:00-06:00"]; empty: all day')
    location: Zone = Field("UTC", description="Time zone of the times")
    actions: list[Route] = Field([], description="Actions and severities it mutes; empty: all but critical")


class Notify(Section):
    """Receivers, and which action or severity goes to which."""

    receivers: dict[Name, Receiver] = {}
    routes: dict[Route | Literal["watchdog", "default"], Name] = Field(
        {}, description="Action, severity, watchdog or default to the receiver; all that match are notified")
    group_wait: Duration = Duration("30s")
    group_interval: Duration = Duration("5m")
    repeat_interval: Duration = Duration("4h")
    mute: dict[Name, Mute] = {}

    @model_validator(mode="after")
    def _receivers_exist(self) -> Notify:
        for route, receiver in self.routes.items():
            if receiver not in self.receivers:
                fix = did_you_mean(receiver, self.receivers) if self.receivers else "define it under notify.receivers"
                raise FieldError("names a receiver that does not exist", ("routes", route), receiver, fix)
        return self


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
    release_label: LabelValue | None = Field(None, description="Label release, by which the operator selects objects")
    labels: dict[str, LabelValue] = Field({}, description="Further labels of every object")
    operator: Literal["prometheus", "victoria-metrics"] = "prometheus"
    alertmanager: Literal["secret", "config", "none"] = Field(
        "secret", description="A Secret with alertmanager.yaml, an AlertmanagerConfig, or neither")
    devices: Literal["node", "claim", "daemonset"] = Field(
        "node", description="Sidecars see their node's devices, those of a resource claim, or a DaemonSet reads them")
    claim: Name = Field("accelerators", description="The pod's resource claim, for devices: claim")
    runtime_class: Name | None = Field("nvidia", description="Runtime class of NVIDIA pods; null for the default one")
    node_selector: dict[str, LabelValue] = Field({}, description="Nodes of the DaemonSet; default by accelerator")
    prometheus_namespace: Name | None = Field(
        None, description="From where the sidecars may be scraped; default namespace")
    dashboard_folder: str = Field("K3", description="Grafana folder of the dashboards")
    autoscaling: Autoscaling | None = None


class Images(Section):
    """Container images that you built from images/ and pushed to a registry of yours."""

    exporter: Image = f"k3observe-exporter:{__version__}"
    command: Image = f"k3observe:{__version__}"


def _switch(kind: type[Section]) -> Any:
    """Accept ``true`` and ``false`` for a section with defaults."""
    return BeforeValidator(lambda v: kind() if v is True else None if v is False else v)


class Outputs(Section):
    """What is rendered."""

    prometheus: Literal["full", "fragment"] = "full"
    grafana: bool = True
    kubernetes: Annotated[Kubernetes | None, _switch(Kubernetes)] = None
    compose: bool = False
    systemd: bool = False
    ruler: Literal["mimir"] | None = Field(None, description="All rules as one namespace of Mimir's ruler")
    images: Images = Images()


class Config(Section):
    """The whole of ``k3observe.yaml``."""

    version: Literal[1] = Field(description="Version of this format")
    stack: Name = Field(description="Name of the stack: label, prefix of files and dashboards")
    services: list[Service] = Field(min_length=1)
    language: Language = "en"
    timezone: Zone = Field("UTC", description="Zone of times in messages to people")
    external_labels: dict[LabelName, LabelValue] = {}
    identity_labels: list[LabelName] = Field([], description="Labels kept in every aggregation, e.g. [cluster]")
    runbook_base_url: Url | None = None
    grafana_url: Url | None = None
    prometheus: Prometheus = Prometheus()
    alertmanager: Alertmanager = Alertmanager()
    alerts: dict[str, AlertSettings] = {}
    notify: Notify = Notify()
    outputs: Outputs = Outputs()
    aliases: dict[MetricName, MetricName] = Field({}, description="Signal recorded under a second name")
    catalogue: list[str] = Field([], description="Files with engines or signals of your own")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [service.name for service in self.services]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise FieldError("stands twice", ("services", index, "name"), name, "give each service its own name")
        for service in self.services:
            unknown = set(service.accelerators.nodes.values()) - set(names) if service.accelerators else ()
            if unknown:
                raise ValueError(f"accelerators.nodes of {service.name!r} names no service: {min(unknown)!r}")
        places: list[tuple[Path, str]] = [(("external_labels", name), name) for name in self.external_labels]
        places += [(("identity_labels", index), name) for index, name in enumerate(self.identity_labels)]
        for path, name in places:
            if name in OWN_LABELS:
                raise FieldError("is a label of k3observe's own", path, name, "choose another name")
        return self
