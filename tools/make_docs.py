"""Writes docs/alerts and docs/zh-CN/alerts, one page an alert, from the rules themselves.

    python -m tools.make_docs            # write
    python -m tools.make_docs --check    # exit 1 where a page is missing, superfluous or not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import loads
from k3observe.plan import Plan, plan
from k3observe.render.alerts import Rule, rules
from k3observe.render.runbooks import page
from k3observe.rules import load as load_rules

Language = Literal["en", "zh-CN"]
ROOT = Path(__file__).resolve().parent.parent
FOLDERS: dict[Language, Path] = {"en": Path("docs/alerts"), "zh-CN": Path("docs/zh-CN/alerts")}
EXAMPLE = """\
version: 1
stack: kimi-k3
language: {language}
services:
  - name: kimi-k3
    model: {{preset: kimi-k3}}
    engine:
      name: vllm
      version: "0.33"
      args: {{gpu_memory_utilization: 0.92, max_num_seqs: 64, prefix_caching: true, expert_parallel_size: 16,
             eplb: true}}
    targets: ["10.0.0.1:8000", "10.0.0.2:8000"]
    accelerators: {{kind: nvidia, per_node: 8}}
    sidecar: {{collect: [gpu, experts], experts: {{source: plugin}}}}
    alerts: {{RequestsTimedOut: {{params: {{timeout: 30}}}}}}
"""
WORDS = {
    "en": {
        "index": "Alerts",
        "note": "Numbers and queries are those of the example below; `k3observe explain ALERT` shows yours.",
        "signals": "Signals", "roles": "Roles", "alert": "Alert", "title": "Meaning", "severity": "Severity",
        "action": "Action", "optional": "if there", "example": "Example",
    },
    "zh-CN": {
        "index": "告警", "note": "数值与查询取自文末示例；`k3observe explain ALERT` 可查看你自己的。",
        "signals": "所需信号", "roles": "适用角色", "alert": "告警", "title": "含义", "severity": "级别",
        "action": "处置动作", "optional": "如有", "example": "示例",
    },
}  # fmt: skip
HEADER = "<!-- Written by `python -m tools.make_docs` from rules/. Do not edit. -->\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield path and content of every page."""
    for language, folder in FOLDERS.items():
        made = plan(loads(EXAMPLE.format(language=language)), load_catalogue(), load_rules())
        found = {rule.alert.name: rule for group in made.pack.groups for rule in rules(made, group)}
        yield folder / "README.md", _index(made, language, found)
        for name, rule in found.items():
            yield folder / f"{name}.md", HEADER + page(made, [rule]) + "\n" + _needs(made, language, rule)


def _index(made: Plan, language: Language, found: dict[str, Rule]) -> str:
    words = WORDS[language]
    lines = [f"# {words['index']}", "", words["note"], ""]
    for group in made.pack.groups:
        head = " | ".join(words[name] for name in ("alert", "title", "severity", "action"))
        lines += [f"## {group.title.get(language)}", "", f"| {head} |", "|---|---|---|---|"]
        for alert in group.alerts:
            rule = found[alert.name]
            cells = [f"[{alert.name}]({alert.name}.md)", alert.title.get(language), rule.settings.severity,
                     rule.labels["action"]]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [f"## {words['example']}", "", "```yaml", EXAMPLE.format(language=language).rstrip(), "```", ""]
    return HEADER + "\n".join(lines)


def _needs(made: Plan, language: Language, rule: Rule) -> str:
    """The signals an alert needs, with their meaning."""
    words, signals = WORDS[language], made.catalogue.signals
    if not rule.alert.signals:
        return ""
    lines = [f"## {words['signals']}", ""]
    for name in [*rule.alert.signals, *rule.alert.uses]:
        optional = f" ({words['optional']})" if name in rule.alert.uses else ""
        lines.append(f"- `{signals[name].series}`{optional}: {signals[name].meaning.get(language)}")
    roles = ", ".join(sorted(rule.alert.suits.roles))
    return "\n".join([*lines, "", f"{words['roles']}: {roles}", ""])


def stale() -> list[str]:
    """Pages that are missing, superfluous or not current."""
    wanted = dict(pages())
    there = {path.relative_to(ROOT) for folder in FOLDERS.values() for path in (ROOT / folder).glob("*.md")}
    wrong = [path for path, text in wanted.items() if path not in there or (ROOT / path).read_text("utf-8") != text]
    return sorted(map(str, {*wrong, *(there - set(wanted))}))


def main() -> int:
    if "--check" in sys.argv[1:]:
        wrong = stale()
        print("\n".join(wrong) or "all pages are current")
        return 1 if wrong else 0
    wanted = dict(pages())
    for folder in FOLDERS.values():
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        for path in (ROOT / folder).glob("*.md"):
            if path.relative_to(ROOT) not in wanted:
                path.unlink()
    for path, text in wanted.items():
        (ROOT / path).write_text(text, "utf-8")
    print(f"{len(wanted)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
