"""Which values the label ``job`` can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from k3observe.lint.scrape import Scraping


def known_jobs(scrapings: Sequence[Scraping], monitors: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """Jobs of scrape configurations and of PodMonitors; None if there are none, or if any stays unknown.

    They come from job names, labels of target groups and relabeling.
    """
    files = {Path(scraping.document.file).resolve() for scraping in scrapings}
    found: set[str] = set()
    known = all([
        *(_of_job(scraping, job, files, found) for scraping in scrapings for job, _ in scraping.jobs()),
        *(_of_monitor(monitor, found) for monitor in monitors),
    ])  # fmt: skip
    for scraping in scrapings:
        for group, _, _ in scraping.groups():
            labels = group.get("labels")
            if isinstance(labels, dict) and "job" in labels:
                found.add(str(labels["job"]))
    return frozenset(found) if known and found else None


def _of_job(scraping: Scraping, job: Mapping[str, Any], files: set[Path], found: set[str]) -> bool:
    found.add(str(job.get("job_name")))
    relabeled = _relabeled(job, ("relabel_configs", "metric_relabel_configs"), "target_label", found)
    return relabeled is not None and "http_sd_configs" not in job and _all_here(scraping, job, files)


def _of_monitor(monitor: Mapping[str, Any], found: set[str]) -> bool:
    """A PodMonitor's job is its namespace and name; a ServiceMonitor's is a Service that is not here."""
    spec, metadata = monitor.get("spec"), monitor.get("metadata")
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return False
    for endpoint in _mappings(spec.get("podMetricsEndpoints")) + _mappings(spec.get("endpoints")):
        relabeled = _relabeled(endpoint, ("relabelings", "metricRelabelings"), "targetLabel", found)
        if relabeled is None:
            return False
        if not relabeled:
            if monitor.get("kind") != "PodMonitor" or "jobLabel" in spec or "namespace" not in metadata:
                return False
            found.add(f"{metadata['namespace']}/{metadata.get('name')}")
    return True


def _relabeled(job: Mapping[str, Any], lists: Iterable[str], target: str, found: set[str]) -> bool | None:
    """Add the fixed values that relabeling gives the job; None where one depends on the target."""
    any_found = False
    for rule in (rule for name in lists for rule in _mappings(job.get(name))):
        if rule.get(target) == "job":
            value = str(rule.get("replacement", "$1"))
            if "$" in value:
                return None
            found.add(value)
            any_found = True
    return any_found


def _all_here(scraping: Scraping, job: Mapping[str, Any], files: set[Path]) -> bool:
    """Whether every target file that a job names was read; a pattern never counts as that."""
    folder = Path(scraping.document.file).parent
    listed = [name for sd in _mappings(job.get("file_sd_configs")) for name in sd.get("files") or ()]
    return all("*" not in str(name) and (folder / str(name)).resolve() in files for name in listed)


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
