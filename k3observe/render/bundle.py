"""The whole bundle of a plan, as path -> bytes. Pure: the same plan gives the same bytes everywhere."""

from __future__ import annotations

from collections.abc import Iterator

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
    systemd,
    unittests,
)
from k3observe.render.alerts import Rule
from k3observe.render.text import header, items, to_yaml

Bundle = dict[str, bytes]

OUTPUTS = ("prometheus", "alertmanager", "grafana", "kubernetes", "compose", "systemd", "runbooks")
"""Top-level folders of a bundle, which are also what ``--only`` takes."""


def render(plan: Plan, only: frozenset[str] | None = None) -> Bundle:
    """Render a plan, or some of its outputs."""
    wanted = only or frozenset(OUTPUTS)
    rules = [rule for group in plan.pack.groups for rule in alerts.rules(plan, group)]
    files: Bundle = {}
    if "prometheus" in wanted:
        files |= dict(_prometheus(plan, rules))
        if plan.config.outputs.ruler == "mimir":
            files |= dict(kubernetes.rules.mimir(plan.config, files))
    if "alertmanager" in wanted:
        files |= dict(alertmanager.files(plan))
    if "grafana" in wanted:
        files |= dict(grafana.files(plan))
    if "kubernetes" in wanted and plan.config.outputs.kubernetes is not None:
        files |= dict(kubernetes.files(plan, dict(_prometheus(plan, rules)) | dict(grafana.files(plan))))
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
        interval = Duration.of(max(usual.seconds, recording.SLOW.get(name.removeprefix("signals-"), 0.0)))
        text = f"groups:\n  - name: {stack}-{name}\n    interval: {interval}\n    rules:\n" + items(entries, 6)
        return f"prometheus/rules/{stack}-{name}.yml", (header(plan.config) + text).encode()

    recorded = recording.groups(plan)
    for domain, records in recorded.items():
        yield group(f"signals-{domain}", [(record.comment, record.document()) for record in records])
    for part in plan.pack.groups:
        own = [rule for rule in rules if rule.alert in part.alerts]
        if not own:
            continue
        yield group(f"alerts-{part.group}", [(rule.comment(plan.config.language), rule.document()) for rule in own])
        for alert, document in unittests.documents(plan, own, f"{stack}-alerts-{part.group}", list(recorded)):
            yield f"prometheus/tests/{stack}-{alert}.yml", (header(plan.config) + to_yaml(document)).encode()
    yield from prometheus.files(plan, [f"rules/{name}" for name in names])
