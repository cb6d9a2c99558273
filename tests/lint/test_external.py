"""What promtool and amtool say becomes findings; where they are missing, that is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k3observe.drill import binaries
from k3observe.lint import programs
from k3observe.lint.external import external
from k3observe.lint.folder import Document, documents

RULES = "groups: [{name: g, rules: [{alert: A, expr: up == 0}]}]"
MANAGER = "route: {receiver: a}\nreceivers: [{name: a}]\n"


def found(folder: Path) -> list[Document]:
    return [item for item in documents(folder) if isinstance(item, Document)]


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which neither promtool nor amtool is installed."""
    monkeypatch.setattr(binaries, "PROJECT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("K3OBSERVE_BIN", raising=False)
    programs.program.cache_clear()
    yield
    programs.program.cache_clear()


@pytest.mark.usefixtures("no_programs")
def test_what_is_skipped_is_said_with_the_way_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "alertmanager.yml").write_text(MANAGER)
    findings, skipped = external(found(tmp_path))
    assert findings == []
    promtool, amtool = skipped
    assert promtool.startswith("promtool over 1 files: promtool >= 3.5 is missing")
    assert amtool.startswith("amtool over 1 files: amtool >= 0.33 is missing")
    assert "export K3OBSERVE_BIN=" in promtool


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
@pytest.mark.usefixtures("promtool", "amtool")
class TestWithPrograms:
    def test_only_the_file_that_is_refused_gets_the_finding(self, tmp_path: Path) -> None:
        (tmp_path / "good.yml").write_text(RULES)
        (tmp_path / "bad.yml").write_text(RULES.replace("expr", "for: 5 minutes, expr"))
        findings, skipped = external(found(tmp_path))
        assert [(Path(finding.file).name, finding.check) for finding in findings] == [("bad.yml", "promtool/rules")]
        assert "duration" in findings[0].what
        assert skipped == []

    def test_a_secret_that_lies_on_the_server_is_no_finding(self, tmp_path: Path) -> None:
        (tmp_path / "prometheus.yml").write_text(
            "scrape_configs: [{job_name: a, authorization: {credentials_file: /nonexistent/token}}]")
        findings, skipped = external(found(tmp_path))
        assert findings == []
        assert skipped[0].startswith(f"{tmp_path}/prometheus.yml: promtool checked its syntax only: ")
        assert "/nonexistent/token" in skipped[0]

    def test_a_snippet_without_a_root_receiver_is_not_given_to_amtool(self, tmp_path: Path) -> None:
        (tmp_path / "route.yml").write_text("route: {routes: [{receiver: a}]}\nreceivers: [{name: a}]\n")
        assert external(found(tmp_path)) == ([], [])
