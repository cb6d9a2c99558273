"""prometheus.yml, its targets, and the fragment for a Prometheus that exists already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from k3observe.catalogue.version import Version
from k3observe.config.model import Accelerators, Config, Discovery, Service
from k3observe.plan import Plan
from k3observe.render.text import header, to_yaml

ENGINE, SIDECAR = "k3-engine", "k3-sidecar"


def files(plan: Plan, rule_files: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the scrape configuration and its target files."""
    config = plan.config
    jobs, targets = _scraped(plan)
    if config.outputs.prometheus == "fragment":
        document: dict[str, Any] = {"scrape_configs": jobs}
        name = f"prometheus/{config.stack}-scrape.yml"
    else:
        document = {
            "global": {
                "scrape_interval": str(config.prometheus.scrape_interval),
                "scrape_timeout": str(config.prometheus.timeout),
                "evaluation_interval": str(config.prometheus.evaluation_interval),
                **({"external_labels": dict(sorted(config.external_labels.items()))} if config.external_labels else {}),
            },
            "rule_files": rule_files,
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": config.prometheus.alertmanagers}]}],
            },
            "scrape_configs": jobs,
            **({"remote_write": _remote_write(config)} if config.prometheus.remote_write else {}),
        }
        name = "prometheus/prometheus.yml"
    yield name, (header(config) + to_yaml(document)).encode()
    for path, groups in sorted(targets.items()):
        yield f"prometheus/{path}", (header(config) + to_yaml(groups)).encode()


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
        put(ENGINE, service, document, _engine_sd(config, service), [group(service, ENGINE, list(service.targets))])
        if service.sidecar.collect:
            groups = [group(service, SIDECAR, sidecar_targets(service))]
            put(SIDECAR, service, _job(config, service, "/metrics"), _sidecar_sd(config, service), groups)
        accelerators = service.accelerators
        if accelerators is not None and accelerators.source != "sidecar" and accelerators.targets:
            exporter = plan.catalogue.sources[accelerators.source]
            document = _job(config, service, exporter.metrics_path)
            if accelerators.source == "npu-exporter":
                # its samples carry the time of collection: without this a chip that stalls is never stale
                document["honor_timestamps"] = False
            groups = [group(plan.services[owner], exporter.job, targets)
                      for owner, targets in _owners(service, accelerators).items()]  # fmt: skip
            put(exporter.job, service, document, {}, groups)
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


def _engine_sd(config: Config, service: Service) -> dict[str, Any]:
    """Empty where addresses are listed."""
    return {} if service.discovery is None else _discovered(config, service, service.discovery, ENGINE, None)


def _sidecar_sd(config: Config, service: Service) -> dict[str, Any]:
    """Empty where addresses are listed."""
    if service.targets or service.sidecar.targets:
        return {}
    assert service.discovery is not None
    return _discovered(config, service, service.discovery, SIDECAR, service.sidecar.port)


def _discovered(
    config: Config, service: Service, discovery: Discovery, job: str, port: int | None
) -> dict[str, Any]:
    """Discovery with relabeling that pins the labels every rule selects on; ``port`` replaces the engine's."""
    relabel: list[dict[str, Any]] = []
    sd: dict[str, Any] = {}
    if discovery.kubernetes is not None:
        kube = discovery.kubernetes
        selector = ",".join(f"{key}={value}" for key, value in sorted(kube.selector.items()))
        sd["kubernetes_sd_configs"] = [{
            "role": "pod",
            **({"namespaces": {"names": [kube.namespace]}} if kube.namespace else {}),
            "selectors": [{"role": "pod", "label": selector}],
        }]  # fmt: skip
        if port is None and isinstance(kube.port, int):
            relabel.append(_keep("__meta_kubernetes_pod_container_port_number", str(kube.port)))
        elif port is None:
            relabel.append(_keep("__meta_kubernetes_pod_container_port_name", str(kube.port)))
        relabel.append(_copy("__meta_kubernetes_pod_name", "pod"))
        relabel.append(_copy("__meta_kubernetes_pod_node_name", "node"))
        if "namespace" in config.identity_labels:
            relabel.append(_copy("__meta_kubernetes_namespace", "namespace"))
    elif discovery.dns is not None:
        dns = discovery.dns
        sd["dns_sd_configs"] = [{
            "names": list(dns.names), "type": dns.type, **({"port": dns.port} if dns.port is not None else {}),
        }]  # fmt: skip
    else:
        assert discovery.file is not None
        sd["file_sd_configs"] = [{"files": list(discovery.file.files)}]
    if port is not None:
        relabel.append({
            "source_labels": ["__address__"], "regex": r"(\[[^\]]+\]|[^:]+)(?::\d+)?",
            "target_label": "__address__", "replacement": f"$1:{port}",
        })  # fmt: skip
    relabel += [{"target_label": name, "replacement": value} for name, value in labels(config, service, job).items()]
    return {**sd, "relabel_configs": relabel}


def _keep(label: str, regex: str) -> dict[str, Any]:
    return {"source_labels": [label], "regex": regex, "action": "keep"}


def _copy(label: str, to: str) -> dict[str, Any]:
    return {"source_labels": [label], "target_label": to}


def labels(config: Config, service: Service, job: str) -> dict[str, str]:
    """Target labels of a service: stack, service, role and the pinned job, then the user's own."""
    return {
        "stack": config.stack,
        "service": service.name,
        "role": service.role,
        "job": job,
        **dict(sorted(service.labels.items())),
    }


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


def _remote_write(config: Config) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for target in config.prometheus.remote_write:
        document: dict[str, Any] = {"url": target.url}
        if target.basic_auth_user and target.password_file:
            document["basic_auth"] = {"username": target.basic_auth_user, "password_file": target.password_file}
        if target.bearer_token_file:
            document["authorization"] = {"credentials_file": target.bearer_token_file}
        found.append(document)
    return found
