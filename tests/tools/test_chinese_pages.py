"""What the pages say in English they say in Chinese."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page.name for page in (ROOT / "docs/zh-CN").glob("*.md"))
PAIRS = [("README.md", "README.zh-CN.md"), *((f"docs/{name}", f"docs/zh-CN/{name}") for name in PAGES)]


def shape(path: str) -> dict[str, object]:
    """What stays when a page is translated: its parts, their sizes, and the programs and flags it names."""
    text = (ROOT / path).read_text(encoding="utf-8")
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", text)) - {"--language"}  # only there one writes it
    return {
        "headings": [len(level) for level in re.findall(r"^(#+) ", text, re.M)],
        "rows": len(re.findall(r"^\|", text, re.M)),
        "blocks": re.findall(r"^\s*```(\w+)", text, re.M),
        "commands": re.findall(r"^(k3observe(?:-\w+)? [a-z]+|make [a-z]+)", text, re.M),
        "flags": flags,
    }


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=[english for english, _ in PAIRS])
def test_a_chinese_page_has_the_parts_commands_and_flags_of_the_english_one(english: str, chinese: str) -> None:
    assert shape(chinese) == shape(english)
