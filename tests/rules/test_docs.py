"""The pages on alerts are complete and say what the rules say."""

from __future__ import annotations

from k3observe.rules import load
from tools import make_docs


def test_the_pages_on_alerts_are_current() -> None:
    assert make_docs.stale() == [], "run `python -m tools.make_docs`"


def test_every_alert_has_a_page_in_each_language() -> None:
    written = {path for path, _ in make_docs.pages()}
    for folder in make_docs.FOLDERS.values():
        assert written >= {folder / f"{alert}.md" for alert in load().alerts}


def test_no_chinese_text_calls_an_alert_or_a_signal_blind_word_for_word() -> None:
    root = make_docs.ROOT
    texts = [root / "README.zh-CN.md", *(root / "docs/zh-CN").rglob("*.md"), *(root / "rules").glob("*.yaml"),
             *(root / "dashboards").glob("*.py"), root / "k3observe/cli/doctor.py"]  # fmt: skip
    assert [path for path in texts if "\u5931\u660e" in path.read_text()] == [], "say 失效 of alerts, 无数据 of signals"
