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


_MOST_LINES = 8


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
    from k3observe.remedies import lines, of_plan

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
        return 0
    language = plan.config.language
    click.echo(_text(document, language))
    told = lines([row for row in of_plan(plan) if service in (None, row.service)], language)
    if told:
        click.echo("\n  ".join([_WORDS[language]["remedies"], *told]))
    for line in unheard(plan):
        click.echo(line)
    return 0


def report(plan: Plan, service: str | None = None) -> dict[str, Any]:
    """The plan as plain data: per service its armed alerts, those that are not and why, and what would arm them.

    ``left_out`` are those that are switched off, or mean nothing for the service: nobody need mend that.
    """
    from k3observe.remedies import of_plan

    language, found = plan.config.language, of_plan(plan)
    services = []
    for item in plan.config.services:
        if service not in (None, item.name):
            continue
        armed = [
            {"alert": a.alert.name, "severity": a.settings.severity, "threshold": a.settings.threshold,
             "unit": a.alert.unit, "for": str(a.settings.for_), "evidence": _evidence(plan, item.name, a.alert.signals)}
            for a in plan.armed if a.service.name == item.name
        ]  # fmt: skip
        blind, wanted = ([
            {"alert": b.alert.name, "reason": b.reason.get(language), "fix": b.fix.get(language) if b.fix else None}
            for b in plan.blind if b.service.name == item.name and b.wanted is kind
        ] for kind in (False, True))  # fmt: skip
        mend = [{"changes": [change.get(language) for change in row.changes], "alerts": list(row.alerts)}
                for row in found if row.service == item.name]  # fmt: skip
        services.append({"service": item.name, "engine": item.engine.name, "version": item.engine.version,
                         "armed": armed, "not_armed": blind, "left_out": wanted, "remedies": mend})  # fmt: skip
    return {"stack": plan.config.stack, "services": services}


def _evidence(plan: Plan, service: str, signals: list[str]) -> str:
    entries = [plan.entry(service, signal) for signal in signals]
    return "documentation" if any(entry and entry.evidence == "documentation" for entry in entries) else "exposition"


def unarmed(plan: Plan) -> Iterator[str]:
    """What a log should keep of the alerts that are not rendered although nobody asked for that: the changes for them.

    Bounded, whatever the size of the stack: the plan has the rest.
    """
    from k3observe.remedies import lines, of_plan

    missing = sum(not blind.wanted for blind in plan.blind)
    if not missing:
        return
    told, language = lines(of_plan(plan), plan.config.language), plan.config.language
    yield {"en": f"{missing} alerts are not rendered; `k3observe explain` says why:",
           "zh-CN": f"{missing} 条告警未生成，原因见 `k3observe explain`："}[language]  # fmt: skip
    yield from (f"  {line}" for line in told[:_MOST_LINES])
    if len(told) > _MOST_LINES:
        rest = len(told) - _MOST_LINES
        yield {"en": f"  … and {rest} more", "zh-CN": f"  … 另有 {rest} 项"}[language]


def unheard(plan: Plan) -> Iterator[str]:
    """Lines on critical alerts that only a machine is told of, and on the alerts that nobody is, if there are any."""
    from k3observe.render.alertmanager import machines_only
    from k3observe.render.alertmanager import unheard as found

    for action, alerts in machines_only(plan).items():
        receiver, some = plan.config.notify.routes[action], ", ".join(alerts)
        yield {"en": f"critical alerts reach only the webhook {receiver}, and no person ({some}): "
                     "add notify.routes.critical",
               "zh-CN": f"严重告警只发给 webhook {receiver}，没有通知到人（{some}）：请配置 notify.routes.critical",
               }[plan.config.language]  # fmt: skip
    if names := found(plan):
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        yield {"en": f"nobody is told of {len(names)} alerts ({some}): add notify.receivers and notify.routes.default",
               "zh-CN": f"{len(names)} 条告警没有接收者（{some}）：请配置 notify.receivers 和 notify.routes.default",
               }[plan.config.language]  # fmt: skip


_WORDS = {
    "en": {"armed": "armed", "not_armed": "not armed", "left_out": "left out", "threshold": "threshold", "for": "for",
           "doubt": "known from documentation only", "newest": "newest",
           "remedies": "what arms more, the most helpful first:"},
    "zh-CN": {"armed": "已启用", "not_armed": "未启用", "left_out": "未纳入", "threshold": "阈值", "for": "持续",
              "doubt": "仅据文档，未经实测", "newest": "最新版本",
              "remedies": "如何启用更多告警（收效大者在前）："},
}  # fmt: skip


def _text(document: dict[str, Any], language: str) -> str:
    from k3observe.render.template import shown

    words, lines = _WORDS[language], []
    for service in document["services"]:
        lines.append(f"{service['service']} ({service['engine']} {service['version'] or words['newest']})")
        for item in service["armed"]:
            limit = item["threshold"]
            threshold = "" if limit is None else f" {words['threshold']} {shown(limit, item['unit'])},"
            doubt = "" if item["evidence"] == "exposition" else f" ({words['doubt']})"
            told = f"{threshold} {words['for']} {item['for']}, {item['severity']}{doubt}"
            lines.append(f"  {words['armed']:9}  {item['alert']}:{told}")
        for kind in ("not_armed", "left_out"):
            for item in service[kind]:
                fix = f"; {item['fix']}" if item["fix"] else ""
                lines.append(f"  {words[kind]:9}  {item['alert']}: {item['reason']}{fix}")
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
