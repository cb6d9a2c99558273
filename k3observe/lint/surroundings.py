"""What a check may know beyond its subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from k3observe.lint.labels import Labels


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts of the folder and of the configuration that belongs to it.

    Intervals are in seconds; ``job_intervals`` are those of single jobs. ``jobs`` are the values that the label ``job``
    can have, None where that is unknown.
    ``records`` maps a recorded series to the labels it carries. ``filled`` are those whose rules give what was never
    counted a value, so that they begin with the first request. ``reserved`` is the largest share of device memory that
    an engine reserves, ``reserved_by`` that of each service's.
    ``top_bounds`` maps a histogram (its name without ``_bucket``) to its largest finite bound,
    ``shares`` are names of gauges that read 0 to 1. ``series`` are all names that start with ``k3``, of recorded series
    (of a histogram without ``_bucket:rate5m``) and of the exporters; empty where they are not known. ``engine_name``
    says what is wrong with the name of an engine's metric, nothing where the engines of the configuration have it.
    """

    scrape_interval: float = 15.0
    evaluation_interval: float = 15.0
    prometheus_version: str | None = None
    jobs: frozenset[str] | None = None
    records: Mapping[str, Labels] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()
    reserved: float = 0.92
    reserved_by: Mapping[str, float] = field(default_factory=dict)
    job_intervals: Mapping[str, float] = field(default_factory=dict)
    top_bounds: Mapping[str, float] = field(default_factory=dict)
    shares: frozenset[str] = frozenset()
    series: frozenset[str] = frozenset()
    engine_name: Callable[[str], str] = lambda name: ""
