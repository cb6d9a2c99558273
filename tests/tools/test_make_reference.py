"""The pages on configuration and commands say what the schema and the commands say."""

from __future__ import annotations

import pytest

from tools.make_reference import DOCS, chinese_meanings, meanings, pages


def test_every_section_and_field_has_a_meaning_in_chinese_and_no_other() -> None:
    assert list(chinese_meanings()) == list(meanings())
    assert all(chinese_meanings().values())


@pytest.mark.parametrize("path", ["configuration.md", "zh-CN/configuration.md", "commands.md"])
def test_the_page_is_current(path: str) -> None:
    assert (DOCS / path).read_text(encoding="utf-8") == pages()[path], "run python -m tools.make_reference"
