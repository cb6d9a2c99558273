"""Go templates in labels and annotations of alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3observe.lint.finding import Check, Fault
from k3observe.lint.labels import labels
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings

_LABEL = re.compile(r"(?:\$labels|\.Labels)\.([A-Za-z_]\w*)|index\s+(?:\$labels|\.Labels)\s+[\"'`]([A-Za-z_]\w*)")
_ACTION = re.compile(r"\{\{.*?\}\}", re.S)


def label_aggregated_away(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A label that the expression aggregates away is empty in the text; promtool does not say so."""
    if rule.kind != "alert":
        return
    carried = labels(rule.expr, around.records)
    for field, text in _texts(rule):
        if "range" in text or "query" in text:
            continue
        for action in _ACTION.findall(text):
            for first, second in _LABEL.findall(action):
                name = first or second
                if name not in carried:
                    kept = "none" if carried.open else ", ".join(sorted(carried.names)) or "none"
                    yield Fault(f"{field} is empty where it says {name}: the expression does not carry that label",
                                action, f"keep it in by (…); it carries: {kept}", rule.at(field))  # fmt: skip


def value_in_labels(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """A label with the value is a new alert on each change, and ``for`` starts again."""
    if rule.kind != "alert":
        return
    for name, text in rule.labels.items():
        for action in _ACTION.findall(text):
            if re.search(r"\$value|\.Value\b", action):
                yield Fault(f"the label {name} changes with the value: each change is a new alert", action,
                            "put the value into an annotation", rule.at(f"labels.{name}"))  # fmt: skip


def _texts(rule: Rule) -> Iterator[tuple[str, str]]:
    for kind, texts in (("labels", rule.labels), ("annotations", rule.annotations)):
        for name, text in texts.items():
            yield f"{kind}.{name}", text


CHECKS = (
    Check("alert/label-aggregated-away", label_aggregated_away),
    Check("alert/value-in-labels", value_in_labels),
)
