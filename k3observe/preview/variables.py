"""Grafana's variables, as a dashboard has them when everything is chosen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3observe.preview.prometheus import Prometheus, Span

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")
_SPECIAL = re.compile(r"[\\$^*{}\[\]+?.()|]")
_LABEL_VALUES = re.compile(r"label_values\((.+),\s*(\w+)\)$")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: what may be chosen, and whether all of it is (else the first)."""

    name: str
    label: str
    values: tuple[str, ...]
    all: bool


def choose(
    document: Mapping[str, Any], prometheus: Prometheus, span: Span, scrape_interval: float
) -> tuple[dict[str, str], list[Variable]]:
    """Text of each variable in queries, and the variables that list something.

    ``scrape_interval`` is what the data source is told (``timeInterval``). All is chosen where it can be.
    """
    step = max(span.step, scrape_interval)
    values = {
        "__interval": duration(step),
        "__rate_interval": duration(max(step + scrape_interval, 4 * scrape_interval)),
        "__range": duration(span.end - span.start),
    }
    found = []
    for item in document["templating"]["list"]:
        query = item["query"]["query"] if isinstance(item["query"], dict) else ""
        match = _LABEL_VALUES.match(query)
        if match is None:
            continue
        listed = prometheus.label_values(expand(match[1], values), match[2], span)
        found.append(Variable(item["name"], item["label"], tuple(listed), item["includeAll"]))
        everything = item.get("allValue") or "|".join(_SPECIAL.sub(r"\\\\\g<0>", value) for value in listed)
        values[item["name"]] = everything if item["includeAll"] else listed[0] if listed else ""
    return values, found


def duration(seconds: float) -> str:
    """Spell a duration for PromQL, which knows no fractions: up to whole seconds, below a second to milliseconds."""
    if seconds < 1:
        return f"{max(1, math.ceil(round(seconds * 1000, 3)))}ms"
    return f"{math.ceil(round(seconds, 3))}s"  # rounded first: times since 1970 differ by a hair more than they should


def expand(text: str, values: Mapping[str, str]) -> str:
    """Put values where variables stand; one that is not known stays."""
    return _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), text)
