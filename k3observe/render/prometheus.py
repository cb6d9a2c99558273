"""prometheus.yml, its targets, and the fragment for a Prometheus that exists already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3observe.catalogue.version import Version
from k3observe.config.model import Accelerators, Config, Discovery, Service
from k3observe.plan import Plan
from k3observe.render import pods, remote
from k3observe.render.pods import ENGINE, SIDECAR, labels
from k3observe.render.text import header, to_yaml


def files(plan: Plan, rule_files: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the scrape configuration, one for each shard, and its target files."""
    config = plan.config
    jobs, targets = _scraped(plan)
    if config.outputs.prometheus == "fragment":
        yield f"prometheus/{config.stack}-scrape.yml", (header(config) + to_yaml({"scrape_configs": jobs})).encode()
    else:
        shards = config.prometheus.shards
        for shard in range(shards):
            document = _server(config, rule_files, shard, [sharded(job, shard, shards) for job in jobs])
            name = "prometheus" if shards == 1 else f"prometheus-{shard}"
            yield f"prometheus/{name}.yml", (header(config) + to_yaml(document)).encode()
    for path, groups in sorted(targets.items()):
        yield f"prometheus/{path}", (header(config) + to_yaml(groups)).encode()


def _server(config: Config, rule_files: list[str], shard: int, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """A shard sees a part of the targets: rules over a whole service are for the ruler behind remote_write."""
    whole = config.prometheus.shards == 1
    return {
        "global": {
            "scrape_interval": str(config.prometheus.scrape_interval),
            "scrape_timeout": str(config.prometheus.timeout),
            "evaluation_interval": str(config.prometheus.evaluation_interval),
            **({"external_labels": _external_labels(config)} if config.external_labels else {}),
        },
        **({"rule_files": rule_files} if whole else {}),
        **({"alerting": {
            "alertmanagers": [{"static_configs": [{"targets": config.prometheus.alertmanagers}]}],
        }} if whole else {}),
        "scrape_configs": [*jobs, *_servers_themselves(config, shard)],
        **({"remote_write": remote.write(config)} if config.prometheus.remote_write else {}),
    }  # fmt: skip


def _external_labels(config: Config) -> dict[str, str]:
    """Prometheus 3 expands environment variables in them, older ones do not."""
    expands = Version.parse(config.prometheus.version) >= Version.parse("3.0.0")
    return {name: pods.literal(value) if expands else value for name, value in sorted(config.external_labels.items())}


def _servers_themselves(config: Config, shard: int) -> Iterator[dict[str, Any]]:
    """Prometheus and its Alertmanagers, for the panels of rule health.

    Their targets have no label of the stack: no rule and no count of targets selects them.
    """
    found = {"prometheus": [config.prometheus.own_address(shard)]}
    if config.prometheus.shards == 1:
        found["alertmanager"] = config.prometheus.alertmanagers
    for name, targets in found.items():
        if targets:
            yield {"job_name": name, "follow_redirects": False, "static_configs": [{"targets": list(targets)}]}


def sharded(job: dict[str, Any], shard: int, shards: int) -> dict[str, Any]:
    """The job for one of several servers: every target falls to exactly one, by a hash of its address."""
    if shards == 1:
        return job
    mine = [
        {"source_labels": ["__address__"], "modulus": shards, "target_label": "__tmp_shard", "action": "hashmod"},
        {"source_labels": ["__tmp_shard"], "regex": str(shard), "action": "keep"},
    ]
    return {**job, "relabel_configs": [*job.get("relabel_configs", []), *mine]}


def scrape_configs(plan: Plan) -> list[dict[str, Any]]:
    """One job for each way of scraping; the label ``job`` is always the same, whatever Prometheus calls the job."""
    return _scraped(plan)[0]


Groups = list[dict[str, Any]]


def _scraped(plan: Plan) -> tuple[list[dict[str, Any]], dict[str, Groups]]:
    """The jobs and their target files: each job reads its own, or it would scrape the engines of the others too."""
    config = plan.config
    jobs: dict[str, dict[str, Any]] = {}
    files: dict[str, Groups] = {}

    def put(kind: str, service: Service, document: dict[str, Any], discovery: dict[str, Any], groups: Groups) -> None:
        """Join services that are scraped alike into one job; one with a discovery of its own has a job of its own."""
        key = f"{kind} {service.name if discovery else ''} {sorted((k, str(v)) for k, v in document.items())}"
        if key not in jobs:
            first = all(job["job_name"] != f"{config.stack}-{kind}" for job in jobs.values())
            name = kind if first else f"{kind}-{service.name}"
            file = {ENGINE: "engines", SIDECAR: "sidecars"}.get(kind, kind) + name.removeprefix(kind)
            found = discovery or {"file_sd_configs": [{"files": [f"targets/{config.stack}-{file}.yml"]}]}
            jobs[key] = {"job_name": f"{config.stack}-{name}", **document, **found}
        if not discovery:
            files.setdefault(jobs[key]["file_sd_configs"][0]["files"][0], []).extend(groups)

    def group(owner: Service, job: str, targets: list[str]) -> dict[str, Any]:
        return {"targets": targets, "labels": labels(config, owner, job)}

    for service in config.services:
        source = plan.catalogue.sources[service.engine.name]
        path = service.metrics_path or source.metrics_path
        document = _job(config, service, path, service.scheme or "http", source.prefix)
        put(ENGINE, service, document, _engine_sd(plan, service), [group(service, ENGINE, list(service.targets))])
        if pods.sidecar_collects(service, config):
            groups = [group(service, SIDECAR, sidecar_targets(service))]
            put(SIDECAR, service, _job(config, service, "/metrics"), _sidecar_sd(config, service), groups)
        accelerators = service.accelerators
        if accelerators is None or accelerators.source == "sidecar":
            continue
        if accelerators.targets or accelerators.discovery:
            exporter = plan.catalogue.sources[accelerators.source]
            document = _job(config, service, exporter.metrics_path)
            if accelerators.source == "npu-exporter":
                # its samples carry the time of collection: without this a chip that stalls is never stale
                document["honor_timestamps"] = False
            groups = [group(plan.services[owner], exporter.job, targets)
                      for owner, targets in _owners(service, accelerators).items()]  # fmt: skip
            found = pods.exporter(service, accelerators.discovery, exporter, config) if accelerators.discovery else None
            put(exporter.job, service, document, pods.kubernetes_sd(found) if found else {}, groups)
    for daemonset in pods.device_daemonset(plan):
        put(daemonset.name, config.services[0], _job(config, config.services[0], daemonset.path),
            pods.kubernetes_sd(daemonset), [])  # fmt: skip
    return list(jobs.values()), files


def _job(config: Config, service: Service, path: str, scheme: str = "http", prefix: str = "") -> dict[str, Any]:
    """How a job scrapes; what else stands in it is its name and where its targets are."""
    document: dict[str, Any] = {"metrics_path": path}
    if scheme != "http":
        document["scheme"] = scheme
        if service.tls_ca_file:
            document["tls_config"] = {"ca_file": service.tls_ca_file}
    if Version.parse(config.prometheus.version) >= Version.parse("3.0.0"):
        document["fallback_scrape_protocol"] = "PrometheusText0.0.4"
    document["follow_redirects"] = False
    if prefix:
        document["metric_relabel_configs"] = [spelling(prefix)]
    return document


def spelling(prefix: str) -> dict[str, str]:
    """Undo the underscore that newer clients write for the colon in an engine's metric names.

    prometheus_client from 0.23 on escapes ``vllm:x`` to ``vllm_x`` unless the scraper asks for UTF-8 names.
    """
    word = prefix.rstrip(":")
    return {
        "source_labels": ["__name__"],  # type: ignore[dict-item]
        "regex": f"{word}_(.+)",
        "target_label": "__name__",
        "replacement": f"{word}:$1",
    }


def _engine_sd(plan: Plan, service: Service) -> dict[str, Any]:
    """Empty where addresses are listed."""
    if service.discovery is None:
        return {}
    if service.discovery.kubernetes is not None:
        return pods.kubernetes_sd(pods.engine(service, service.discovery.kubernetes, plan))
    return _discovered(plan.config, service, service.discovery, ENGINE, None)


def _sidecar_sd(config: Config, service: Service) -> dict[str, Any]:
    """Empty where addresses are listed."""
    if service.targets or service.sidecar.targets:
        return {}
    assert service.discovery is not None
    if service.discovery.kubernetes is not None:
        return pods.kubernetes_sd(pods.sidecar(service, service.discovery.kubernetes, config))
    return _discovered(config, service, service.discovery, SIDECAR, service.sidecar.port)


def _discovered(
    config: Config, service: Service, discovery: Discovery, job: str, port: int | None
) -> dict[str, Any]:
    """Discovery with relabeling that pins the labels every rule selects on; ``port`` replaces the engine's."""
    if discovery.dns is not None:
        sd: dict[str, Any] = {"dns_sd_configs": [discovery.dns.model_dump(exclude_none=True)]}
    else:
        assert discovery.file is not None
        sd = {"file_sd_configs": [{"files": list(discovery.file.files)}]}
    relabel: list[dict[str, Any]] = []
    if port is not None:
        relabel.append({
            "source_labels": ["__address__"], "regex": r"(\[[^\]]+\]|[^:]+)(?::\d+)?",
            "target_label": "__address__", "replacement": f"$1:{port}",
        })  # fmt: skip
    relabel += [{"target_label": name, "replacement": pods.literal(value)}
                for name, value in labels(config, service, job).items()]
    return {**sd, "relabel_configs": relabel}


def _owners(service: Service, accelerators: Accelerators) -> dict[str, list[str]]:
    """Collectors by the service whose devices they read: ``nodes`` says it for a host that another service uses."""
    found: dict[str, list[str]] = {}
    for target in accelerators.targets:
        owner = accelerators.nodes.get(target.rpartition(":")[0], service.name)
        found.setdefault(owner, []).append(target)
    return found


def sidecar_targets(service: Service) -> list[str]:
    """Addresses of a service's sidecars: as given, else the engines' hosts with the sidecar's port, each once."""
    if service.sidecar.targets:
        return list(service.sidecar.targets)
    hosts = dict.fromkeys(target.rpartition(":")[0] for target in service.targets)
    return [f"{host}:{service.sidecar.port}" for host in hosts]


def outside(plan: Plan) -> list[dict[str, Any]]:
    """Jobs whose targets are no pods, with listed addresses inside instead of in files."""
    jobs, files = _scraped(plan)
    found = []
    for job in jobs:
        if "kubernetes_sd_configs" in job:
            continue
        names = [name for config in job.get("file_sd_configs", []) for name in config["files"] if name in files]
        if names:
            job = {key: value for key, value in job.items() if key != "file_sd_configs"}
            job["static_configs"] = [group for name in names for group in files[name]]
        found.append(job)
    return found
