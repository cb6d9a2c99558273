"""``k3observe explain``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from k3observe.cli.stack import config_option, load_plan

if TYPE_CHECKING:
    from k3observe.plan import Plan


@click.command("explain")
@click.argument("alert", required=False)
@config_option
@click.option("-s", "--service", help="Only this service.")
@click.option("--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(alert: str | None, file: Path, service: str | None, form: str) -> int:
    """Without ALERT, the plan: what is armed per service, what is not, and the change that arms it.

    With ALERT: its meaning, the expression and numbers in force, and its runbook.

    \b
    k3observe explain
    k3observe explain KVCacheUsageHigh -s kimi-k3
    """
    from k3observe.config.errors import ConfigError, Problem, did_you_mean

    _, plan = load_plan(file)
    for word, known, name in ((service, plan.services, "--service"), (alert, plan.pack.alerts, "ALERT")):
        if word is not None and word not in known:
            raise ConfigError([Problem("is not known", value=word, fix=did_you_mean(word, known), file=name)])
    if alert is not None:
        click.echo(_one(plan, alert, service))
        return 0
    document = report(plan, service)
    if form == "json":
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
    else:
        click.echo(_text(document, plan.config.language))
    return 0


def report(plan: Plan, service: str | None = None) -> dict[str, Any]:
    """The plan as plain data: per service its armed alerts, the others with reason and fix, and what is assumed."""
    language = plan.config.language
    services = []
    for item in plan.config.services:
        if service not in (None, item.name):
            continue
        armed = [
            {"alert": a.alert.name, "severity": a.settings.severity, "threshold": a.settings.threshold,
             "for": str(a.settings.for_), "evidence": _evidence(plan, item.name, a.alert.signals)}
            for a in plan.armed if a.service.name == item.name
        ]  # fmt: skip
        blind = [
            {"alert": b.alert.name, "reason": b.reason.get(language), "fix": b.fix.get(language) if b.fix else None,
             "wanted": b.wanted}
            for b in plan.blind if b.service.name == item.name
        ]  # fmt: skip
        services.append({"service": item.name, "engine": item.engine.name, "version": item.engine.version,
                         "armed": armed, "not_armed": blind})  # fmt: skip
    return {"stack": plan.config.stack, "services": services}


def _evidence(plan: Plan, service: str, signals: list[str]) -> str:
    entries = [plan.entry(service, signal) for signal in signals]
    return "documentation" if any(entry and entry.evidence == "documentation" for entry in entries) else "exposition"


def unarmed(plan: Plan) -> Iterator[str]:
    """One line for each alert that is not armed although nobody asked for that, services with one reason together."""
    language = plan.config.language
    shared: dict[tuple[str, str], tuple[list[str], dict[str, None]]] = {}
    for blind in plan.blind:
        if not blind.wanted:
            key = (blind.reason.get(language), blind.fix.get(language) if blind.fix else "")
            alerts, services = shared.setdefault(key, ([], {}))
            services[blind.service.name] = None
            if blind.alert.name not in alerts:
                alerts.append(blind.alert.name)
    verb = {"en": "not rendered", "zh-CN": "未生成"}[language]
    for (reason, fix), (alerts, services) in shared.items():
        names = ", ".join(list(services)[:5]) + (f", … ({len(services)})" if len(services) > 5 else "")
        yield f"{names}: {verb}: {', '.join(alerts)}: {reason}" + (f"; {fix}" if fix else "")


_WORDS = {
    "en": {"armed": "armed", "not_armed": "not armed", "threshold": "threshold", "for": "for",
           "doubt": "known from documentation only", "newest": "newest"},
    "zh-CN": {"armed": "已启用", "not_armed": "未启用", "threshold": "阈值", "for": "持续",
              "doubt": "仅据文档，未经实测", "newest": "最新版本"},
}  # fmt: skip


def _text(document: dict[str, Any], language: str) -> str:
    words, lines = _WORDS[language], []
    for service in document["services"]:
        lines.append(f"{service['service']} ({service['engine']} {service['version'] or words['newest']})")
        for item in service["armed"]:
            threshold = "" if item["threshold"] is None else f" {words['threshold']} {item['threshold']:g},"
            doubt = "" if item["evidence"] == "exposition" else f" ({words['doubt']})"
            told = f"{threshold} {words['for']} {item['for']}, {item['severity']}{doubt}"
            lines.append(f"  {words['armed']:9}  {item['alert']}:{told}")
        for item in service["not_armed"]:
            fix = f"; {item['fix']}" if item["fix"] else ""
            lines.append(f"  {words['not_armed']:9}  {item['alert']}: {item['reason']}{fix}")
    return "\n".join(lines)


def _one(plan: Plan, alert: str, service: str | None) -> str:
    from k3observe.render.alerts import rules
    from k3observe.render.runbooks import page

    found = [
        rule for group in plan.pack.groups for rule in rules(plan, group)
        if rule.alert.name == alert and (service is None or service in rule.services)
    ]  # fmt: skip
    if found:
        return page(plan, found, service)
    language = plan.config.language
    lines = [f"{alert}: " + {"en": "not armed", "zh-CN": "未启用"}[language]]
    for blind in plan.blind:
        if blind.alert.name == alert and service in (None, blind.service.name):
            fix = f"; {blind.fix.get(language)}" if blind.fix else ""
            lines.append(f"  {blind.service.name}: {blind.reason.get(language)}{fix}")
    return "\n".join(lines)
