"""The examples of the documentation work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from k3observe.catalogue import Entry, Gap, Version, load
from k3observe.catalogue.expression import recording
from k3observe.catalogue.loader import _ENTRY_KEYS, _GAP_KEYS
from k3observe.cli.stack import load_plan
from k3observe.drill.binaries import PROJECT


@pytest.mark.parametrize("page", ["docs/catalogue.md", "docs/zh-CN/catalogue.md"])
def test_the_documented_engine_and_fork_load_and_render(page: str, tmp_path: Path) -> None:
    text = (PROJECT / page).read_text("utf-8")
    config, engine, fork = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    paths = [tmp_path / "engines/our-engine.yaml", tmp_path / "engines/our-vllm.yaml"]
    paths[0].parent.mkdir()
    for path, body in zip(paths, (engine, fork), strict=True):
        path.write_text(body, "utf-8")
    catalogue = load(paths)
    entry = catalogue.entry("our-engine", "requests_waiting", Version.parse("2.1"))
    assert isinstance(entry, Entry)
    ((record, expr),) = recording(catalogue.signals["requests_waiting"], entry, 'stack="s"', ("stack", "service"))
    assert record == "k3:requests_waiting:count"
    assert 'ours_requests{stack="s",state="queued"}' in expr
    assert isinstance(catalogue.entry("our-engine", "requests_waiting", Version.parse("1.9")), Gap)
    (tmp_path / "k3observe.yaml").write_text("version: 1\nstack: k3\n" + config, "utf-8")
    plan = load_plan(tmp_path / "k3observe.yaml")[1]
    assert "KVCacheUsageHigh" in {armed.alert.name for armed in plan.armed}


@pytest.mark.parametrize("page", ["docs/catalogue.md", "docs/zh-CN/catalogue.md"])
def test_every_key_is_documented(page: str) -> None:
    text = (PROJECT / page).read_text("utf-8")
    keys = set(_ENTRY_KEYS) | set(_GAP_KEYS)
    assert {key for key in keys if f"`{key}" not in text} <= {"reference"}


def test_shipped_files_are_plain_yaml() -> None:
    for path in (PROJECT / "k3observe/catalogue").rglob("*.yaml"):
        assert yaml.safe_load(path.read_text("utf-8"))
