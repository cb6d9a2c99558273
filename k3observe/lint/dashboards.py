"""Checks of Grafana dashboards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.lint.finding import Check, Fault
from k3observe.lint.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard as Grafana reads it: the object of a JSON file."""

    file: str
    data: Mapping[str, Any]


def _variables(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    """Name and query of each query variable."""
    listed = dashboard.data.get("templating", {}).get("list", [])
    for variable in listed if isinstance(listed, list) else []:
        query = variable.get("query") if isinstance(variable, dict) else None
        query = query.get("query") if isinstance(query, dict) else query
        if isinstance(query, str) and variable.get("type") == "query":
            yield str(variable.get("name")), query


def variable_without_metric(dashboard: Dashboard, around: Surroundings) -> Iterator[Fault]:
    """``label_values(model_name)`` lists what every exporter calls so, engines or not."""
    for name, query in _variables(dashboard):
        if re.fullmatch(r"\s*label_values\(\s*\w+\s*\)\s*", query):
            yield Fault(f"variable {name} lists a label of every exporter", query,
                        'name a series and its job: label_values(vllm:num_requests_running{job=~"$job"}, model_name)')


CHECKS = (Check("dashboard/variable-without-metric", variable_without_metric),)
