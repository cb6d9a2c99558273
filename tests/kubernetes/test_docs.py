"""The pages' configurations render, and what they say is written is written."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from k3observe.cli.stack import load_plan
from k3observe.render.bundle import render
from tests.conftest import ROOT

PAGES = [ROOT / "docs" / part / f"{name}.md" for part in ("", "zh-CN")
         for name in ("kubernetes", "autoscaling", "bare-metal", "scale")]  # fmt: skip


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_configurations_of_the_page_render_and_its_links_lead_somewhere(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        if block.startswith("version: 1"):
            (tmp_path / "k3observe.yaml").write_text(block)
            assert render(load_plan(tmp_path / "k3observe.yaml")[1])
    for block in blocks(page, "json"):
        json.loads(block)
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        target = page.parent / (link if link.endswith((".md", ".py")) else f"{link}.md")
        assert target.is_file(), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in ("kubernetes", "bare-metal")],
                         ids=lambda page: f"{page.parent.name}/{page.stem}")  # fmt: skip
def test_files_that_the_page_names_are_rendered(page: Path, tmp_path: Path) -> None:
    (tmp_path / "k3observe.yaml").write_text(next(b for b in blocks(page, "yaml") if b.startswith("version: 1")))
    paths = list(render(load_plan(tmp_path / "k3observe.yaml")[1]))
    named = re.findall(r"^ *(kubernetes/\S+|systemd/\S+\.(?:service|conf))", "\n".join(blocks(page, "")), re.M)
    assert named or page.stem != "kubernetes"
    for name in named:
        assert any(fnmatch(path, name + "*" * name.endswith("/")) for path in paths), name


def test_both_languages_have_the_same_pages_and_configurations() -> None:
    for page in PAGES[:4]:
        chinese = [block.replace("language: zh-CN\n", "") for block in blocks(PAGES[4].parent / page.name, "yaml")]
        english = blocks(page, "yaml")
        assert [b for b in chinese if b.startswith("version: 1")] == [b for b in english if b.startswith("version: 1")]
