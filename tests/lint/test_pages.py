"""The pages of the checks are right: what they call found is found, what they call not found is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.cli.stack import load_plan
from k3observe.lint.configured import surroundings
from k3observe.lint.external import external
from k3observe.lint.folder import Document, documents
from k3observe.lint.registry import IDS
from k3observe.lint.routing import findings as configured
from k3observe.lint.run import lint

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"en": ROOT / "docs" / "checks", "zh-CN": ROOT / "docs" / "zh-CN" / "checks"}


def checked(folder: Path, with_programs: bool) -> set[str]:
    """Ids of the checks that find something in a folder."""
    config = folder / "k3observe.yaml"
    loaded, plan = load_plan(config) if config.exists() else (None, None)
    around = surroundings(plan.catalogue if plan else load_catalogue(), plan.config if plan else None)
    found = list(documents(folder))
    if with_programs:
        found += external([item for item in found if isinstance(item, Document)])[0]
    own = configured(loaded, config.read_text(), plan) if loaded and plan else ()
    return {finding.check for finding in (*own, *lint(found, around))}


def write_examples(section: str, folder: Path) -> None:
    """Write the blocks of a section as files: the first comment names one, rules need no groups around them."""
    folder.mkdir()
    for language, text in re.findall(r"```(yaml|json)\n(.*?)```", section, re.S):
        named = re.match(r"# (\S+\.ya?ml)\n", text)
        name = "dashboard.json" if language == "json" else named[1] if named else "rules.yml"
        if text.startswith("- "):
            text = "groups:\n- name: example\n  rules:\n" + re.sub(r"^", "  ", text, flags=re.M)
        (folder / name).write_text(text)


PROGRAMS = sorted(check for check in IDS if check.split("/")[0] in ("promtool", "amtool"))


def examples_hold(check: str, folder: Path, with_programs: bool) -> None:
    _, found, right, _ = (PAGES["en"] / f"{check}.md").read_text().split("\n## ")
    write_examples(found, folder / "found")
    write_examples(right, folder / "right")
    assert check in checked(folder / "found", with_programs)
    assert checked(folder / "right", with_programs) == set(), "what is right is right for every check"


@pytest.mark.parametrize("check", sorted(IDS - set(PROGRAMS)))
def test_a_check_finds_what_its_page_calls_found_and_nothing_in_what_it_calls_right(check: str, tmp_path: Path) -> None:
    examples_hold(check, tmp_path, with_programs=False)


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
@pytest.mark.parametrize("check", PROGRAMS)
@pytest.mark.usefixtures("promtool", "amtool")
def test_a_program_refuses_what_its_page_calls_found(check: str, tmp_path: Path) -> None:
    examples_hold(check, tmp_path, with_programs=True)


@pytest.mark.parametrize("check", sorted(IDS))
def test_both_languages_show_the_same_examples(check: str) -> None:
    english, chinese = ((folder / f"{check}.md").read_text() for folder in PAGES.values())
    blocks = [re.findall(r"```(?:yaml|json)\n(.*?)```", page, re.S) for page in (english, chinese)]
    assert blocks[0][:-1] == blocks[1][:-1]
    assert re.search(r"[\u4e00-\u9fff]", chinese)
    assert not re.search(r"[\u4e00-\u9fff]", english)


@pytest.mark.parametrize("language", list(PAGES))
def test_the_index_lists_every_check_and_every_page_belongs_to_one(language: str) -> None:
    folder = PAGES[language]
    listed = set(re.findall(r"^\| \[([\w/-]+)\]\(\1\.md\)", (folder / "README.md").read_text(), re.M))
    pages = {str(page.relative_to(folder).with_suffix("")) for page in folder.rglob("*.md")} - {"README"}
    assert listed == pages == set(IDS)


def test_findings_for_machines_name_the_page(tmp_path: Path) -> None:
    (tmp_path / "r.yml").write_text("groups: [{name: g, rules: [{alert: A, expr: 'rate(x[1s])>1'}]}]")
    finding = lint(list(documents(tmp_path)), surroundings(load_catalogue(), None))[0]
    assert json.loads(json.dumps(finding.data()))["page"] == "docs/checks/promql/rate-window.md"
    assert (ROOT / finding.data()["page"]).exists()
