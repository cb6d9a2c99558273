"""Scrape configurations and target files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.catalogue.version import Version
from k3observe.config.source import Located
from k3observe.lint.finding import Check, Fault
from k3observe.lint.rules import seconds
from k3observe.lint.surroundings import Surroundings

_SINCE = {
    "scrape_config_files": "2.43", "keep_dropped_targets": "2.47", "track_timestamps_staleness": "2.48",
    "scrape_protocols": "2.49", "fallback_scrape_protocol": "3.0", "metric_name_validation_scheme": "3.0",
    "convert_classic_histograms_to_nhcb": "3.0", "always_scrape_classic_histograms": "3.0",
    "metric_name_escaping_scheme": "3.4", "otlp": "3.0",
}  # fmt: skip
_DEFAULT_INTERVAL, _DEFAULT_TIMEOUT = 60.0, 10.0


@dataclass(frozen=True, slots=True)
class Scraping:
    """A prometheus.yml, a file of scrape_configs, or a file_sd target file (then a list of groups)."""

    document: Located

    @property
    def whole(self) -> Mapping[str, Any]:
        """The top-level mapping; empty for a target file."""
        return self.document.data if isinstance(self.document.data, dict) else {}

    @property
    def common(self) -> Mapping[str, Any]:
        """The section ``global``."""
        common = self.whole.get("global")
        return common if isinstance(common, dict) else {}

    def jobs(self) -> Iterator[tuple[Mapping[str, Any], tuple[str | int, ...]]]:
        """Each scrape configuration, and its path."""
        listed = self.whole.get("scrape_configs")
        for index, job in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(job, dict):
                yield job, ("scrape_configs", index)

    def groups(self) -> Iterator[tuple[Mapping[str, Any], tuple[str | int, ...], Mapping[str, Any]]]:
        """Each group of static targets, its path, and the scrape configuration it is in."""
        if isinstance(self.document.data, list):
            for index, group in enumerate(self.document.data):
                if isinstance(group, dict):
                    yield group, (index,), {}
        for job, path in self.jobs():
            listed = job.get("static_configs")
            for index, group in enumerate(listed if isinstance(listed, list) else []):
                if isinstance(group, dict):
                    yield group, (*path, "static_configs", index), job

    def setting(self, job: Mapping[str, Any], name: str, default: float) -> float:
        """``scrape_interval`` or ``scrape_timeout`` of a job in seconds: its own, the global one, or the default."""
        for place in (job, self.common):
            value = seconds(place.get(name))
            if value is not None:
                return value
        return default

    def interval(self, job: Mapping[str, Any]) -> float:
        """The scrape interval of a job in seconds."""
        return self.setting(job, "scrape_interval", _DEFAULT_INTERVAL)


def target_with_path(scraping: Scraping, around: Surroundings) -> Iterator[Fault]:
    """Prometheus refuses a target that is more than host and port."""
    for group, path, job in scraping.groups():
        targets = group.get("targets")
        for index, target in enumerate(targets if isinstance(targets, list) else []):
            # with relabeling to __address__, as for the blackbox exporter, a target may be any text
            if isinstance(target, str) and "/" in target and not _moves_address(job):
                scheme, rest = target.split("://", 1) if "://" in target else ("", target)
                address, _, metrics_path = rest.partition("/")
                fixes = [f"write {address or 'host:port'}"]
                fixes += [f"the path goes to metrics_path: /{metrics_path}"] if metrics_path else []
                fixes += [f"the scheme goes to scheme: {scheme}"] if scheme else []
                yield Fault("a target is a host and a port only", target, "; ".join(fixes),
                            scraping.document.line((*path, "targets", index)))  # fmt: skip


def _moves_address(job: Mapping[str, Any]) -> bool:
    rules = job.get("relabel_configs")
    listed = rules if isinstance(rules, list) else []
    return any(isinstance(rule, dict) and rule.get("target_label") == "__address__" for rule in listed)


def newer_field(scraping: Scraping, around: Surroundings) -> Iterator[Fault]:
    """Prometheus refuses a whole file for one field it does not know."""
    if around.prometheus_version is None:
        return
    version = Version.parse(around.prometheus_version)
    places = [(scraping.whole, ()), (scraping.common, ("global",)), *scraping.jobs()]
    for place, path in places:
        for field, since in _SINCE.items():
            if field in place and version < Version.parse(f"{since}.0"):
                yield Fault(f"Prometheus {around.prometheus_version} does not know this field and refuses the file",
                            field, f"remove it, or set prometheus.version to {since} or later",
                            scraping.document.line((*path, field)))  # fmt: skip


def timeout_above_interval(scraping: Scraping, around: Surroundings) -> Iterator[Fault]:
    """Prometheus refuses a scrape that may last longer than to the next one."""
    common = scraping.common
    everywhere: list[tuple[Mapping[str, Any], tuple[str | int, ...]]] = [({}, ("global",))] if common else []
    for job, path in [*everywhere, *scraping.jobs()]:
        interval, timeout = scraping.interval(job), scraping.setting(job, "scrape_timeout", _DEFAULT_TIMEOUT)
        given = "scrape_timeout" in (job or common)
        if given and timeout > interval:
            yield Fault(f"scrape_timeout {timeout:g}s is longer than scrape_interval {interval:g}s", None,
                        "shorten the timeout", scraping.document.line((*path, "scrape_timeout")))  # fmt: skip


def honor_labels(scraping: Scraping, around: Surroundings) -> Iterator[Fault]:
    """With honor_labels an exporter's own ``instance`` or ``pod`` replaces what discovery says."""
    for job, path in scraping.jobs():
        name = str(job.get("job_name"))
        passes_on = re.search(r"(?i)federat|push|node|textfile", name) or "federate" in str(job.get("metrics_path"))
        if job.get("honor_labels") is True and not passes_on:
            yield Fault("the exporter's labels replace those of the target: job, instance, service, pod", name,
                        "honor_labels: false; rules then read the exporter's own as exported_pod",
                        scraping.document.line((*path, "honor_labels")))  # fmt: skip


def npu_timestamps(scraping: Scraping, around: Surroundings) -> Iterator[Fault]:
    """npu-exporter dates its samples: a chip that stalls then lingers instead of going stale."""
    for job, path in scraping.jobs():
        name = str(job.get("job_name"))
        handled = job.get("honor_timestamps") is False or job.get("track_timestamps_staleness") is True
        if re.search(r"(?i)npu[-_]?exporter", name) and not handled:
            yield Fault("npu-exporter dates its samples: what stalls never goes stale", name,
                        "add honor_timestamps: false", scraping.document.line(path))  # fmt: skip


CHECKS = (
    Check("scrape/target-with-path", target_with_path),
    Check("scrape/newer-field", newer_field),
    Check("scrape/timeout-above-interval", timeout_above_interval),
    Check("scrape/honor-labels", honor_labels),
    Check("scrape/npu-timestamps", npu_timestamps),
)
