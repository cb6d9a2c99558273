"""What the Prometheus operator makes of a PodMonitor, as its documentation and promcfg.go (0.80) describe it."""

from __future__ import annotations

import re


def snake(value: object) -> object:
    if isinstance(value, dict):
        return {re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), key): snake(item) for key, item in value.items()}
    return [snake(item) for item in value] if isinstance(value, list) else value


def _meta(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def scrape_config(monitor: dict) -> dict:
    """The scrape config of a PodMonitor's one endpoint."""
    spec, name = monitor["spec"], f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    endpoint = spec["podMetricsEndpoints"][0]
    relabel: list[dict] = [
        {"source_labels": ["job"], "target_label": "__tmp_prometheus_job_name"},
        {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)", "action": "drop"},
    ]
    for label, value in sorted(spec["selector"]["matchLabels"].items()):
        relabel.append({
            "source_labels": [f"__meta_kubernetes_pod_label_{_meta(label)}",
                              f"__meta_kubernetes_pod_labelpresent_{_meta(label)}"],
            "regex": f"({re.escape(value)});true", "action": "keep"})  # fmt: skip
    kind = "number" if "portNumber" in endpoint else "name"
    port = str(endpoint.get("portNumber", endpoint.get("port")))
    relabel.append({"source_labels": [f"__meta_kubernetes_pod_container_port_{kind}"], "regex": port, "action": "keep"})
    for source, target in (("namespace", "namespace"), ("pod_container_name", "container"), ("pod_name", "pod")):
        relabel.append({"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target})
    relabel.append({"target_label": "job", "replacement": name})
    relabel.append({"target_label": "endpoint", "replacement": port})
    relabel += [snake(item) for item in endpoint.get("relabelings", [])]
    return {
        "job_name": f"podMonitor/{name}/0", "honor_labels": endpoint["honorLabels"],
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": spec["namespaceSelector"]["matchNames"]}}],
        "scrape_interval": endpoint["interval"], "scrape_timeout": endpoint["scrapeTimeout"],
        "metrics_path": endpoint["path"], "relabel_configs": relabel,
        "metric_relabel_configs": [snake(item) for item in endpoint.get("metricRelabelings", [])],
    }  # fmt: skip
