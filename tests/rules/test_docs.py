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
