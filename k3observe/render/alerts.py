"""Alert rules: one rule for all services with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from k3observe.config.model import Config
from k3observe.config.values import Duration
from k3observe.dashboards.boards import home
from k3observe.dashboards.model import panel_id
from k3observe.plan import Plan, Settings
from k3observe.render.latency import bucket
from k3observe.render.selector import selector
from k3observe.render.template import fill, go, shown
from k3observe.rules import Alert, Group


@dataclass(frozen=True)
class Rule:
    """An alert rule and what it was made from, which its test needs again."""

    alert: Alert
    settings: Settings
    services: tuple[str, ...]
    selector: str
    by: tuple[str, ...]
    expr: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        keep = self.settings.keep_firing_for
        return {
            "alert": self.alert.name,
            "expr": self.expr,
            **({"for": str(self.settings.for_)} if self.settings.for_.seconds else {}),
            **({"keep_firing_for": str(keep)} if keep and keep.seconds else {}),
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
        }

    def comment(self, language: str) -> str:
        """Why the threshold is what it is, where it follows from the service."""
        reason = self.settings.reason
        return reason.get(language) if reason is not None else ""


def rules(plan: Plan, group: Group) -> Iterator[Rule]:
    """Yield the rules of a group: a rule a setting, in the order of the configuration."""
    for alert in group.alerts:
        shared: dict[Settings, list[str]] = {}
        for armed in plan.armed:
            if armed.alert is alert:
                shared.setdefault(armed.settings, []).append(armed.service.name)
        for settings, services in shared.items():
            yield rule(plan, alert, settings, services)


def by_labels(config: Config, keep: tuple[str, ...] | list[str] = ()) -> tuple[str, ...]:
    """Labels that an aggregation keeps: stack, service, the identity labels, then ``keep``."""
    return tuple(dict.fromkeys(("stack", "service", *config.identity_labels, *keep)))


def values(plan: Plan, alert: Alert, settings: Settings, sel: str) -> dict[str, Any]:
    """What an alert's templates may use."""
    config = plan.config
    by = by_labels(config, alert.keep)
    return {
        "sel": sel,
        "by": ", ".join(by),
        "service_by": ", ".join(by_labels(config)),
        "stack": config.stack,
        "threshold": settings.threshold,
        "window": settings.window,
        "for_": settings.for_,
        "params": dict(alert.params) | dict(settings.params),
        "facts": dict(settings.facts),
        "uses": settings.uses,
        "codes": settings.codes,
        "bucket": partial(_bucket, plan, sel, ", ".join(by)),
        "series": {name: recorded(plan, name) for name in sorted(settings.uses)},
        "rate_window": rate_window(config),
    }


def _bucket(plan: Plan, sel: str, by: str, signal: str, bound: float) -> str:
    return bucket(plan.catalogue.signals[signal].series, sel, by, bound)


def recorded(plan: Plan, signal: str) -> str:
    """The name of a series of a signal; of a histogram, that of its count."""
    found = plan.catalogue.signals[signal]
    return found.series + ("_count:rate5m" if found.kind == "histogram" else "")


def rate_window(config: Config) -> Duration:
    """The window of rates: 5 m, or four intervals where those are longer."""
    return Duration.of(max(300, 4 * config.prometheus.slowest))


def rule(plan: Plan, alert: Alert, settings: Settings, services: list[str]) -> Rule:
    """Build one rule."""
    config = plan.config
    sel = selector(config, services)
    known = values(plan, alert, settings, sel)
    unit = alert.value_unit or alert.unit
    limit = shown(settings.threshold, alert.unit) if settings.threshold is not None else None
    texts = known | {"threshold": limit, "number": settings.threshold, "value": go(unit)}
    annotations = {
        "summary": fill(alert.summary.get(config.language), texts),
        "description": fill(alert.description.get(config.language), texts),
        "value": go(unit),
        **({"threshold": limit} if limit is not None else {}),
        **_links(config, alert),
        **dict(settings.annotations),
    }
    labels = {"severity": settings.severity, "action": alert.action, **dict(settings.labels)}
    if not alert.signals:
        labels["stack"] = config.stack
    by = tuple(known["by"].split(", "))
    return Rule(alert, settings, tuple(services), sel, by, fill(alert.expr, known), labels, annotations)


def _links(config: Config, alert: Alert) -> dict[str, str]:
    links = {}
    if config.runbook_base_url:
        links["runbook_url"] = f"{config.runbook_base_url.rstrip('/')}/{alert.name}"
    if config.grafana_url:
        board = f"{config.grafana_url.rstrip('/')}/d/{dashboard_uid(config, alert.dashboard)}"
        found = home(alert.name)
        query = [f"viewPanel={panel_id(found[1].key)}"] if found and found[0].name == alert.dashboard else []
        query += [f"var-{name}={{{{ $labels.{name} }}}}" for name in ("service", "instance") if name in _shown(alert)]
        links["dashboard_url"] = f"{board}?{'&'.join(query)}" if query else board
    return links


def _shown(alert: Alert) -> tuple[str, ...]:
    return ("service", *alert.keep) if alert.signals else ()


def dashboard_uid(config: Config, name: str) -> str:
    """The uid of a dashboard, ``k3-<stack>-<name>``; a stack too long for Grafana's 40 characters is cut and hashed."""
    uid = f"k3-{config.stack}-{name}"
    if len(uid) > 40 or "." in uid:
        from hashlib import sha256

        digest = sha256(uid.encode()).hexdigest()[:8]
        uid = f"k3-{config.stack.replace('.', '-')[: 40 - len(name) - 13]}-{digest}-{name}"
    return uid
