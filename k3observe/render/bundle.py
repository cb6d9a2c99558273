"""The whole bundle of a plan, as path -> bytes. Pure: the same plan gives the same bytes everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.values import Duration
from k3observe.plan import Plan
from k3observe.render import (
    alertmanager,
    alerts,
    compose,
    grafana,
    kubernetes,
    prometheus,
    recording,
    runbooks,
    signaltests,
    systemd,
    unittests,
)
from k3observe.render.alerts import Rule
from k3observe.render.selector import quoted
from k3observe.render.text import header, items, to_yaml

Bundle = dict[str, bytes]

OUTPUTS = ("prometheus", "alertmanager", "grafana", "kubernetes", "compose", "systemd", "runbooks")
"""Top-level folders of a bundle, which are also what ``--only`` takes."""


def render(plan: Plan, only: frozenset[str] | None = None) -> Bundle:
    """Render a plan, or some of its outputs."""
    wanted = only or frozenset(OUTPUTS)
    rules = [rule for group in plan.pack.groups for rule in alerts.rules(plan, group)]
    # Kubernetes objects hold the rules and dashboards, whether those are wanted by themselves or not
    packed = "kubernetes" in wanted and plan.config.outputs.kubernetes is not None
    rendered = dict(_prometheus(plan, rules)) if packed or "prometheus" in wanted else {}
    boards = dict(grafana.files(plan)) if packed or "grafana" in wanted else {}
    files: Bundle = {}
    if "prometheus" in wanted:
        files |= rendered
        if plan.config.outputs.ruler == "mimir":
            files |= dict(kubernetes.rules.mimir(plan.config, rendered))
    if "alertmanager" in wanted:
        files |= dict(alertmanager.files(plan))
    if "grafana" in wanted:
        files |= boards
    if packed:
        files |= dict(kubernetes.files(plan, rendered | boards))
    if "compose" in wanted:
        files |= dict(compose.files(plan))
    if "systemd" in wanted:
        files |= dict(systemd.files(plan))
    if "runbooks" in wanted:
        files |= dict(runbooks.files(plan, rules))
    return dict(sorted(files.items()))


def _prometheus(plan: Plan, rules: list[Rule]) -> Iterator[tuple[str, bytes]]:
    stack, usual = plan.config.stack, plan.config.prometheus.evaluation_interval
    names: list[str] = []

    def group(name: str, entries: list[tuple[str, dict[str, object]]]) -> tuple[str, bytes]:
        names.append(f"{stack}-{name}.yml")
        _parse(entries)
        interval = Duration.of(max(usual.seconds, recording.SLOW.get(name.removeprefix("signals-"), 0.0)))
        text = f"groups:\n  - name: {stack}-{name}\n    interval: {interval}\n    rules:\n" + items(entries, 6)
        return f"prometheus/rules/{stack}-{name}.yml", (header(plan.config) + text).encode()

    recorded = recording.groups(plan)
    for domain, records in recorded.items():
        path, content = group(f"signals-{domain}", [(record.comment, record.document()) for record in records])
        yield path, content
        yield path.replace("/rules/", "/tests/another-stack/"), _of_another(stack, content)
    for domain, document in signaltests.documents(plan, list(recorded)):
        yield f"prometheus/tests/{stack}-signals-{domain}.yml", (header(plan.config) + to_yaml(document)).encode()
    for part in plan.pack.groups:
        own = [rule for rule in rules if rule.alert in part.alerts]
        if not own:
            continue
        yield group(f"alerts-{part.group}", [(rule.comment(plan.config.language), rule.document()) for rule in own])
        for alert, document in unittests.documents(plan, own, f"{stack}-alerts-{part.group}", list(recorded)):
            yield f"prometheus/tests/{stack}-{alert}.yml", (header(plan.config) + to_yaml(document)).encode()
        stranger = unittests.strangers(plan, own, f"{stack}-alerts-{part.group}", list(recorded))
        if stranger is not None:
            path = f"prometheus/tests/{stack}-another-stack-{part.group}.yml"
            yield path, (header(plan.config) + to_yaml(stranger)).encode()
    yield from prometheus.files(plan, [f"rules/{name}" for name in names])


def _parse(entries: list[tuple[str, dict[str, object]]]) -> None:
    """Refuse to write what Prometheus would refuse to load: one bad rule takes all the others with it."""
    problems = []
    for _, rule in entries:
        try:
            promql_parser.parse(str(rule["expr"]))
        except ValueError as error:
            name = str(rule.get("alert") or rule.get("record"))
            problems.append(Problem(f"would be no PromQL: {error}", (name,), rule["expr"], file="rules"))
    if problems:
        raise ConfigError(problems)


def _of_another(stack: str, content: bytes) -> bytes:
    """Recording rules as another stack has them, for tests."""
    other = unittests.another(stack)
    text = content.decode().replace(f"stack={quoted(stack)}", f"stack={quoted(other)}")
    text = text.replace(f"          stack: {stack}\n", f"          stack: {other}\n")
    return text.replace(f"  - name: {stack}-", f"  - name: {other}-").encode()
