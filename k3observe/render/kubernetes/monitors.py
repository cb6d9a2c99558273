"""Objects that tell an operator what to scrape: PodMonitor or VMPodScrape for pods, ScrapeConfig for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from k3observe.config.model import Config
from k3observe.plan import Plan
from k3observe.render import pods, prometheus
from k3observe.render.kubernetes.objects import Object, dns_name, file, named, settings
from k3observe.render.pods import Pods

HONOR_LABELS = """\
honorLabels is false: labels of a target (pod, namespace, node) win, and what an exporter itself calls so becomes
exported_pod. Neither engines nor sidecars expose stack, service, role or job: rules select on pinned labels only."""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield the scrape objects."""
    found = [_monitor(plan.config, target) for target in pods.found(plan)]
    if found:
        operator = settings(plan.config).operator
        name = "podmonitors" if operator == "prometheus" else "vmpodscrapes"
        yield f"{name}.yaml", file(plan.config, found, HONOR_LABELS)
    outside = list(_outside(plan))
    if outside:
        yield "scrapeconfigs.yaml", file(plan.config, outside, "Targets outside the cluster.")


def _monitor(config: Config, target: Pods) -> Object:
    namespace = target.namespace or settings(config).namespace
    spec = {
        "selector": {"matchLabels": dict(sorted(target.selector.items()))},
        "namespaceSelector": {"matchNames": [namespace]},
        "podMetricsEndpoints": [_endpoint(config, target)],
    }
    name = dns_name(config.stack, target.name)
    if settings(config).operator == "prometheus":
        return {**named(config, "monitoring.coreos.com/v1", "PodMonitor", name), "spec": spec}
    return {**named(config, "operator.victoriametrics.com/v1beta1", "VMPodScrape", name), "spec": spec}


def _endpoint(config: Config, target: Pods) -> Object:
    prometheus_operator = settings(config).operator == "prometheus"
    relabel, metric = (
        ("relabelings", "metricRelabelings") if prometheus_operator else ("relabelConfigs", "metricRelabelConfigs")
    )
    document: Object = {
        ("portNumber" if isinstance(target.port, int) else "port"): target.port,
        "path": target.path,
        "interval": str(config.prometheus.scrape_interval),
        "scrapeTimeout": str(config.prometheus.timeout),
        "honorLabels": False,
        ("followRedirects" if prometheus_operator else "follow_redirects"): False,
        relabel: [camel(item) for item in target.relabel],
    }
    if target.scheme != "http":
        document["scheme"] = target.scheme
        if target.ca_file:
            secret = dns_name(config.stack, target.name, "ca")
            document["tlsConfig"] = {"ca": {"secret": {"name": secret, "key": "ca.crt"}}}
    if not target.honor_timestamps:
        document["honorTimestamps"] = False
    if target.prefix:
        document[metric] = [camel(prometheus.spelling(target.prefix))]
    return document


def camel(value: Any) -> Any:
    """prometheus.yml's spelling of keys as the operators have it: ``source_labels`` is ``sourceLabels``."""
    if isinstance(value, dict):
        return {re.sub(r"_(\w)", lambda match: match[1].upper(), key): camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def _outside(plan: Plan) -> Iterator[Object]:
    """One ScrapeConfig for each job of services whose addresses are listed, or come from DNS or files."""
    config = plan.config
    for job in prometheus.outside(plan):
        spec: Object = {
            "metricsPath": job["metrics_path"],
            "scrapeInterval": str(config.prometheus.scrape_interval),
            "scrapeTimeout": str(config.prometheus.timeout),
            "honorLabels": False,
        }
        if "scheme" in job:
            upper = settings(config).operator == "prometheus"
            spec["scheme"] = str(job["scheme"]).upper() if upper else job["scheme"]
            if "tls_config" in job:
                spec["tlsConfig"] = {"ca": {"secret": {"name": dns_name(job["job_name"], "ca"), "key": "ca.crt"}}}
        if "honor_timestamps" in job:
            spec["honorTimestamps"] = job["honor_timestamps"]
        if "static_configs" in job:
            spec["staticConfigs"] = job["static_configs"]
        for theirs, ours in (("file_sd_configs", "fileSDConfigs"), ("dns_sd_configs", "dnsSDConfigs"),
                             ("relabel_configs", "relabelings"), ("metric_relabel_configs", "metricRelabelings")):
            if theirs in job:
                spec[ours] = camel(job[theirs])
        name = dns_name(job["job_name"])
        if settings(config).operator == "prometheus":
            yield {**named(config, "monitoring.coreos.com/v1alpha1", "ScrapeConfig", name), "spec": spec}
        else:
            yield _vm_scrape(config, name, spec)


def _vm_scrape(config: Config, name: str, spec: Object) -> Object:
    """The same as the VictoriaMetrics operator has it."""
    names = {
        "metricsPath": "path", "scrapeInterval": "interval", "relabelings": "relabelConfigs",
        "metricRelabelings": "metricRelabelConfigs",
    }  # fmt: skip
    return {
        **named(config, "operator.victoriametrics.com/v1beta1", "VMScrapeConfig", name),
        "spec": {names.get(key, key): value for key, value in spec.items()},
    }
