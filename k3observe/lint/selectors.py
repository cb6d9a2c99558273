"""Selectors that find nothing, or what they did not mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

import promql_parser as promql

from k3observe.catalogue.version import Version
from k3observe.config.errors import did_you_mean
from k3observe.lint.finding import Check, Fault
from k3observe.lint.promql import each, matchers, names, operator
from k3observe.lint.rules import Rule
from k3observe.lint.surroundings import Surroundings


def unknown_job(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """The job is what the scrape configuration or the PodMonitor makes it, not what the engine is called."""
    if around.jobs is None:
        return
    for selector in each(rule.expr, promql.VectorSelector):
        sign, value = matchers(selector).get("job", ("", ""))
        none = (sign == "=" and value not in around.jobs) or (sign == "=~" and not _any(value, around.jobs))
        if none and not any(name in around.records for name in names(selector)):
            yield Fault("no scrape job here has this label", f'job{sign}"{value}"',
                        did_you_mean(value, around.jobs), rule.at("expr"))  # fmt: skip


def _any(pattern: str, jobs: frozenset[str]) -> bool:
    if len(pattern) > 200:
        return True
    try:
        return any(re.fullmatch(pattern, job) for job in jobs)
    except re.error:
        return True


def label_without_metric(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """``model_name`` is a label of NPU and node exporters too."""
    for selector in each(rule.expr, promql.VectorSelector):
        asked = matchers(selector)
        if not names(selector) and "__name__" not in asked and "job" not in asked:
            yield Fault("selects series of every exporter that has this label", str(selector),
                        "name the series, or the job", rule.at("expr"))  # fmt: skip


def version_dependent(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """Names and fields that only one of Prometheus 2 and 3 knows."""
    for call in each(rule.expr, promql.Call):
        if operator(call) in ("double_exponential_smoothing", "holt_winters"):
            yield Fault("is unknown to Prometheus 2 or to Prometheus 3", str(call),
                        "use avg_over_time or predict_linear", rule.at("expr"))  # fmt: skip
    version = around.prometheus_version
    if version is not None:
        for field, since in (("query_offset", "2.53.0"), ("labels", "3.0.0")):
            if field in rule.group and Version.parse(version) < Version.parse(since):
                yield Fault(f"Prometheus {version} does not know this field of a rule group", field,
                            f"it needs {since.removesuffix('.0')}")  # fmt: skip


def unknown_metric(rule: Rule, around: Surroundings) -> Iterator[Fault]:
    """Engines rename and remove metrics; ``new or old`` is right as long as one of both is there."""
    faults = []
    for selector in each(rule.expr, promql.VectorSelector):
        said = [around.engine_name(name) for name in names(selector) if name not in around.records]
        if said and all(said):
            what, _, fix = said[0].partition(": ")
            faults.append(Fault(what, str(selector), fix, rule.at("expr")))
        elif said and any(operator(node) == "or" for node in each(rule.expr, promql.BinaryExpr)):
            return
    yield from faults


CHECKS = (
    Check("promql/unknown-metric", unknown_metric),
    Check("promql/unknown-job", unknown_job),
    Check("promql/label-without-metric", label_without_metric),
    Check("promql/version-dependent", version_dependent),
)
