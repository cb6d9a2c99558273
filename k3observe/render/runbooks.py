"""One page an alert: what it means, how to confirm it with the values in force, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3observe.plan import Plan
from k3observe.render.alerts import Rule, values
from k3observe.render.template import fill, shown
from k3observe.render.text import header

_WORDS = {
    "en": {
        "fires": "Fires when", "expr": "Expression", "services": "Services", "threshold": "Threshold", "for": "For",
        "severity": "Severity", "action": "Action", "why": "Why this threshold",
        "all": "all", "launched": "Engines", "shape": "model: {} MoE layers, {} experts, {} a token",
    },
    "zh-CN": {
        "fires": "触发条件", "expr": "表达式", "services": "服务", "threshold": "阈值", "for": "持续时间",
        "severity": "级别", "action": "处置动作", "why": "阈值依据",
        "all": "全部", "launched": "引擎", "shape": "模型：{} 个 MoE 层，{} 个专家，每个 token 激活 {} 个",
    },
}  # fmt: skip


def files(plan: Plan, rules: Sequence[Rule]) -> Iterator[tuple[str, bytes]]:
    """Yield a page for each alert that is rendered."""
    by_alert: dict[str, list[Rule]] = {}
    for rule in rules:
        by_alert.setdefault(rule.alert.name, []).append(rule)
    for name, alike in by_alert.items():
        comment = header(plan.config, "").replace("\n ", " ").strip()
        yield f"runbooks/{name}.md", f"<!-- {comment} -->\n{page(plan, alike)}".encode()


def page(plan: Plan, rules: Sequence[Rule], service: str | None = None) -> str:
    """The runbook of one alert, with the numbers of all its rules, or as one service sees it."""
    language, alert = plan.config.language, rules[0].alert
    words = _WORDS[language]
    lines = [f"# {alert.name}: {alert.title.get(language)}", ""]
    for rule in rules:
        lines += _facts(plan, rule, words, service)
    known = values(plan, alert, rules[0].settings, rules[0].selector)
    threshold = rules[0].settings.threshold
    known |= {"number": threshold, "threshold": shown(threshold, alert.unit) if threshold is not None else ""}
    return "\n".join([*lines, fill(alert.runbook.get(language), known), ""])


def _facts(plan: Plan, rule: Rule, words: dict[str, str], service: str | None) -> list[str]:
    everyone = len(rule.services) == len(plan.config.services)
    names = words["all"] if everyone else ", ".join(rule.services[:20]) + (" …" if len(rule.services) > 20 else "")
    lines = [f"- {words['services']}: {service or names}"]
    if rule.settings.threshold is not None:
        lines.append(f"- {words['threshold']}: {shown(rule.settings.threshold, rule.alert.unit)}")
    if why := rule.comment(plan.config.language):
        lines.append(f"- {words['why']}: {why}")
    lines += [
        f"- {words['for']}: {rule.settings.for_}",
        f"- {words['severity']}: {rule.settings.severity}",
        f"- {words['action']}: {rule.labels['action']}",
        *_engines(plan, [service] if service else rule.services, words, rule.alert.dashboard == "experts"),
        "",
        "```promql",
        rule.expr,
        "```",
        "",
    ]
    return lines


def _engines(plan: Plan, services: Sequence[str], words: dict[str, str], shape: bool) -> Iterator[str]:
    """How the engines are launched as far as the configuration says: what the page tells to change has these values."""
    alike: dict[str, list[str]] = {}
    for name in services:
        service = plan.services[name]
        engine, model = service.engine, service.model.known
        given = engine.args.model_dump(exclude_unset=True, exclude_none=True)
        args = [f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in given.items()]
        if shape and model.experts is not None:
            args.append(words["shape"].format(model.moe_layers, model.experts, model.top_k))
        title = f"{plan.catalogue.sources[engine.name].title} {engine.version or ''}".rstrip()
        alike.setdefault(", ".join([title, *args]), []).append(name)
    for launched, names in list(alike.items())[:5]:
        place = f" ({', '.join(names[:5])}{' …' if len(names) > 5 else ''})" if len(alike) > 1 else ""
        yield f"- {words['launched']}{place}: {launched}"
