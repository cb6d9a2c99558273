"""Which engine or exporter wrote an exposition, and between which versions it must be.

The version is dated by names and labels: a name that is there excludes releases without it; a name that every
exposition of some releases has, and that is not there, excludes those. What remains of the surveyed releases is the
range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3observe.catalogue import Catalogue, Source, Version
from k3observe.catalogue.history import History, Metric, history
from k3observe.live.exposition import Exposition

_NEEDED = 3
"""Names of a source without prefix that must be there: one alone (``prompt_tokens_total``) may be anybody's."""


@dataclass(frozen=True)
class Identity:
    """What an exposition is: a source of the catalogue and the oldest and newest version it can be (None: unknown)."""

    source: str
    oldest: Version | None
    newest: Version | None
    rust_frontend: bool = False


def wanted_names(catalogue: Catalogue) -> frozenset[str]:
    """Sample names that say something about a signal or a version."""
    names: set[str] = set()
    for source in catalogue.sources.values():
        for entry in source.entries:
            for name, kind in entry.metrics.items():
                suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
                names.update(name + suffix for suffix in suffixes.get(kind, ("",)))
        names.update(mark.metric for mark in source.marks)
    return frozenset(names)


def identify(
    exposition: Exposition, catalogue: Catalogue, engine: str | None = None, told: Version | None = None
) -> Identity | None:
    """The source and version of an exposition; None when no source of the catalogue has its names.

    ``engine`` overrides what would be found; ``told`` is what the engine itself says its version is.
    """
    name = engine or _source(exposition, catalogue)
    if name is None:
        return None
    source = catalogue.sources[name]
    rust = _is_rust(exposition, source)
    releases = [told] if told else _releases(exposition, source, rust)
    return Identity(name, releases[0], releases[-1], rust) if releases else Identity(name, None, None, rust)


def _source(exposition: Exposition, catalogue: Catalogue) -> str | None:
    best: tuple[int, bool, str] | None = None
    for source in catalogue.sources.values():
        metrics = {name for entry in source.entries for name, kind in entry.metrics.items()}
        metrics.discard("up")
        own = {name for name in metrics if source.prefix and name.startswith(source.prefix)}
        samples = {name + suffix for name in metrics for suffix in ("", "_bucket", "_count")}
        present = len(samples & set(exposition.counts))
        if source.prefix:
            enough = any(name.startswith(source.prefix) for name in exposition.counts) or len(own & set(
                exposition.types)) > 0  # fmt: skip
        else:
            enough = present >= min(_NEEDED, len(metrics)) or _distinctive(source, exposition)
        # a fork has the names of what it extends: the original is the likelier one
        candidate = (present, not source.extends, source.name)
        if enough and metrics and (best is None or candidate > best):
            best = candidate
    return best[2] if best else None


def _distinctive(source: Source, exposition: Exposition) -> bool:
    """True for names that are nobody else's: those of our sidecar."""
    return source.name == "sidecar" and any(name.startswith(("k3_", "k3observe_")) for name in exposition.counts)


def _is_rust(exposition: Exposition, source: Source) -> bool:
    """vLLM's Rust frontend (0.22 on) leaves out what its Python frontend always has."""
    counts = exposition.counts
    return (
        source.history == "vllm"
        and "vllm:num_requests_waiting_by_reason" in counts
        and "vllm:cache_config_info" not in counts
        and "vllm:engine_sleep_state" not in counts
    )


def _releases(exposition: Exposition, source: Source, rust: bool) -> list[Version]:
    table = history(source.history)
    if table is None:
        return []
    families = _families(exposition, table)
    there = families.values()
    # a name behind --show-hidden-metrics is believed only where nothing else explains it
    fits = [release for release in table.releases if all(metric.visible(release) for metric in there)] or [
        release for release in table.releases if all(metric.exists(release) for metric in there)
    ]
    early = _makes_series_late(exposition, source)
    fits = [release for release in fits if not _lacks(release, table, families, early, rust)]
    for mark in source.marks:
        samples = exposition.samples.get(mark.metric, ())
        seen = any(mark.label in s.labels and mark.value in ("", s.labels[mark.label]) for s in samples)
        if seen:
            fits = [release for release in fits if release >= mark.since]
        elif samples and mark.certain is not None and not (early and source.history == "vllm"):
            fits = [release for release in fits if release < mark.certain]
    return fits


def _families(exposition: Exposition, table: History) -> Mapping[str, Metric]:
    found = {}
    for name in exposition.counts:
        metric = table.family(name)
        if metric is not None:
            found[metric.name] = metric
    return found


def _makes_series_late(exposition: Exposition, source: Source) -> bool:
    """True for SGLang and vLLM's V0 engine, which make counters and histograms with their first event."""
    running = exposition.samples.get("vllm:num_requests_running", ())
    return source.history != "vllm" or not any("engine" in sample.labels for sample in running)


def _lacks(release: Version, table: History, there: Mapping[str, Metric], late: bool, rust: bool) -> bool:
    """True when every exposition of ``release`` has a metric that this one lacks; ``late`` series prove nothing."""
    for metric in table.metrics.values():
        if not metric.presence or metric.name in there or (rust and metric.presence == "python"):
            continue
        if late and metric.type != "gauge" and metric.presence != "seeded":
            continue
        if metric.visible(release):
            return True
    return False
