"""What the configuration and the catalogue tell the checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.history import history, name_problem
from k3observe.catalogue.model import Entry, Source
from k3observe.catalogue.version import Version
from k3observe.config.model import Config, Service
from k3observe.exporters import families
from k3observe.facts import facts
from k3observe.lint.surroundings import Surroundings
from k3observe.rules import load as load_rules

_BEYOND_ONE = frozenset({
    "expert_load_variance", "expert_load_variance_worst", "expert_load_variance_lower_bound", "expert_rank_load",
})  # fmt: skip
"""Signals over the mean of something, of which one can have many times as much."""


def surroundings(catalogue: Catalogue, config: Config | None) -> Surroundings:
    """Facts for the checks; without a configuration those of a plain Prometheus and an engine with its defaults."""
    tops: dict[str, float] = {}
    shares: set[str] = set()
    for source, entry in _entries(catalogue):
        signal = catalogue.signals[entry.signal]
        names = [signal.series, *_spellings(source, entry)]
        if entry.buckets:
            tops.update({name: max(entry.buckets[-1], tops.get(name, 0.0)) for name in names})
        if signal.kind == "gauge" and signal.unit == "ratio" and entry.signal not in _BEYOND_ONE:
            # a raw series that is converted reads otherwise, 0 to 100 say
            shares.update(names if entry.scale == 1 and len(entry.terms) == 1 else [signal.series])
    series = frozenset(_series(catalogue))
    if config is None:
        return Surroundings(
            top_bounds=tops, shares=frozenset(shares), series=series, engine_name=_engine_name(catalogue, ()))
    reserved = {service.name: facts(service)["gpu_memory_utilization"] or 0.0 for service in config.services}
    return Surroundings(
        scrape_interval=config.prometheus.scrape_interval.seconds,
        evaluation_interval=config.prometheus.evaluation_interval.seconds,
        prometheus_version=config.prometheus.version,
        reserved=max(reserved.values()),
        reserved_by=reserved,
        top_bounds=tops,
        shares=frozenset(shares),
        series=series,
        engine_name=_engine_name(catalogue, config.services),
    )


def _series(catalogue: Catalogue) -> Iterator[str]:
    """Names that start with k3: recorded from signals, derived from them, or exposed by the exporters."""
    yield from (signal.series for signal in catalogue.signals.values())
    yield from (derived.record for derived in load_rules().derived.values())
    yield from (term.name for _, entry in _entries(catalogue) for term in entry.terms)
    for family in vars(families).values():
        if isinstance(family, families.Family):
            yield family.name


def _engine_name(catalogue: Catalogue, services: Iterable[Service]) -> Callable[[str], str]:
    """Names are asked of every version that a service runs; of an engine that none runs, of all releases."""
    running: dict[str, set[Version | None]] = {}
    for service in services:
        source, version = catalogue.sources[service.engine.name], service.engine.version
        running.setdefault(source.extends or source.name, set()).add(Version.parse(version) if version else None)

    def said(name: str) -> str:
        source = catalogue.sources.get(re.split("[:_]", name)[0])
        table = history(source.history) if source else None
        if source is None or table is None:
            return ""
        known = table.family(name)
        # vllm_x may be anybody's; and where nothing runs, any release may
        if (known is None and ":" not in name) or (known is not None and source.name not in running):
            return ""
        versions = running.get(source.name, {None})
        found = [name_problem(catalogue, source.name, name, version or table.releases[-1]) for version in versions]
        return found[0].en if found[0] and all(found) else ""

    return said


def _entries(catalogue: Catalogue) -> Iterator[tuple[Source, Entry]]:
    return ((source, entry) for source in catalogue.sources.values() for entry in source.entries)


def _spellings(source: Source, entry: Entry) -> Iterable[str]:
    for term in entry.terms:
        yield term.name
        if source.prefix and term.name.startswith(source.prefix):
            yield source.prefix.replace(":", "_") + term.name[len(source.prefix) :]
