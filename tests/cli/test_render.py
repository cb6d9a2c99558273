"""``k3observe render`` as people and pipelines call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from k3observe import bundle
from tests.cli.conftest import SMALLEST, Run

FULL = (Path(__file__).parents[1] / "config" / "full.yaml").read_text()


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_it_writes_says_what_changed_and_then_has_nothing_to_do(k3observe: Run, config: Path) -> None:
    first = k3observe("render", "-o", "out", "-v")
    assert first.returncode == 0
    assert "add     prometheus/prometheus.yml\n" in first.stdout
    again = k3observe("render", "-o", "out")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.splitlines()[0].endswith("files in out, 0 changed")


def test_many_changes_are_summed_up_by_folder_few_and_those_for_scripts_are_told_one_by_one(
    k3observe: Run, config: Path
) -> None:
    checked = k3observe("render", "-o", "out", "--check").stdout.splitlines()
    summed = k3observe("render", "-o", "out").stdout.splitlines()
    rules = sum(line.startswith("add     prometheus/rules/") for line in checked)
    assert f"prometheus/rules: {rules} added" in summed
    assert sum(int(line.split(": ")[1].split()[0]) for line in summed) == len(checked) - 1, "all but the lock"
    config.write_text(SMALLEST + "alerts: {KVCacheUsageHigh: {threshold: 0.8}}\noutputs: {grafana: false}\n")
    few = k3observe("render", "-o", "out").stdout.splitlines()
    assert "remove  grafana/dashboards/k3-kimi-k3-experts.json" in few
    config.write_text(SMALLEST + "external_labels: {cluster: a}\nidentity_labels: [cluster]\n")
    many = k3observe("render", "-o", "out").stdout.splitlines()
    assert any(line.startswith("prometheus: ") and line.endswith(" changed") for line in many), many
    assert any(line.startswith("grafana/dashboards: ") and line.endswith(" added") for line in many), many


def test_check_and_diff_write_nothing_and_end_with_1_where_something_differs(k3observe: Run, config: Path) -> None:
    out = config.parent / "out"
    assert k3observe("render", "-o", "out", "--check").returncode == 1
    assert not out.exists()
    k3observe("render", "-o", "out")
    before = tree(out)
    assert k3observe("render", "-o", "out", "--check").returncode == 0
    assert k3observe("render", "-o", "out", "--diff").stdout == ""
    config.write_text(SMALLEST + "alerts: {KVCacheUsageHigh: {threshold: 0.8}}\n")
    check, diff = (k3observe("render", "-o", "out", option) for option in ("--check", "--diff"))
    assert (check.returncode, diff.returncode) == (1, 1)
    assert "change  prometheus/rules/kimi-k3-alerts-kv-cache.yml\n" in check.stdout
    assert "\n+            quantile" not in diff.stdout
    assert "> 0.8\n" in diff.stdout
    assert tree(out) == before


def test_a_changed_threshold_changes_its_rule_test_runbook_panels_and_the_lock_alone(
    k3observe: Run, config: Path
) -> None:
    config.write_text(FULL)
    k3observe("render", "-o", "out")
    old = "ExpertLoadVarianceHigh: {threshold: 0.3}"
    assert old in FULL
    config.write_text(FULL.replace(old, old.replace("0.3", "0.4")))
    changed = {line.split()[1] for line in k3observe("render", "-o", "out", "--check").stdout.splitlines()}
    needed = {"prometheus/rules/kimi-k3-alerts-experts.yml", "prometheus/tests/kimi-k3-ExpertLoadVarianceHigh.yml",
              "runbooks/ExpertLoadVarianceHigh.md", "k3observe.lock"}  # fmt: skip
    assert needed <= changed
    # the panels that draw the threshold, what Kubernetes gets of the same rules and dashboards, and the test in which
    # another stack crosses the threshold
    elsewhere = ("grafana/dashboards/", "kubernetes/", "prometheus/tests/kimi-k3-another-stack-experts.yml")
    assert all(path.startswith(elsewhere) for path in changed - needed), changed
    diff = k3observe("render", "-o", "out", "--diff").stdout
    assert "k3observe.lock" not in diff
    rule = diff.partition("+++ b/prometheus/rules/")[2].partition("--- a/")[0]
    added = [line for line in rule.splitlines() if line.startswith("+")]
    assert added
    assert all("0.4" in line for line in added)


def test_the_diff_of_a_dashboard_shows_the_lines_that_change(k3observe: Run, config: Path) -> None:
    k3observe("render", "-o", "out")
    config.write_text(SMALLEST + "alerts: {KVCacheUsageHigh: {threshold: 0.8}}\n")
    diff = k3observe("render", "-o", "out", "--diff", "--only", "grafana").stdout
    changed = [line for line in diff.splitlines() if line[0] in "+-" and line[:4] not in ("+++ ", "--- ")]
    assert any(line.strip().endswith('"value": 0.8') for line in changed)
    assert max(map(len, changed)) < 1000


def test_only_takes_outputs_by_name(k3observe: Run, config: Path) -> None:
    assert k3observe("render", "-o", "out", "--only", "prometheus,runbooks").returncode == 0
    assert {path.split("/")[0] for path in tree(config.parent / "out")} == {"prometheus", "runbooks", bundle.LOCK}
    wrong = k3observe("render", "--only", "promtheus")
    assert (wrong.returncode, wrong.stderr) == (
        2, "k3observe: --only: is no output: 'promtheus': did you mean 'prometheus'?\n")  # fmt: skip


def test_stdout_prints_documents_and_writes_nothing(k3observe: Run, config: Path) -> None:
    done = k3observe("render", "--stdout", "--only", "prometheus")
    assert done.returncode == 0
    documents = list(yaml.safe_load_all(done.stdout))
    assert any("scrape_configs" in document for document in documents)
    assert done.stdout.count("\n# Source: prometheus/") + done.stdout.startswith("# Source") == len(documents)
    assert tree(config.parent).keys() == {"k3observe.yaml"}


@pytest.mark.parametrize("environment", [
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Shanghai", "LANG": "zh_CN.UTF-8", "LC_ALL": "C", "COLUMNS": "40"},
    {"PYTHONHASHSEED": "4294967295", "TZ": "America/Caracas", "LANG": "tr_TR.UTF-8", "HOME": "/nonexistent"},
], ids=["Shanghai", "Caracas"])  # fmt: skip
def test_the_same_configuration_gives_the_same_bytes_everywhere(
    k3observe: Run, config: Path, environment: dict[str, str]
) -> None:
    config.write_text(FULL)
    k3observe("render", "-o", "here")
    elsewhere = config.parent / "deeply" / "elsewhere"
    elsewhere.mkdir(parents=True)
    (elsewhere / "k3observe.yaml").write_text(FULL)
    subprocess.run(
        [sys.executable, "-m", "k3observe", "render", "-o", "bundle"], cwd=elsewhere, check=True, capture_output=True,
        env={**os.environ, **environment})  # fmt: skip
    assert tree(config.parent / "here") == tree(elsewhere / "bundle")


def unfinished(root: Path) -> None:
    """Leave a bundle as a kill leaves it right after the decision for the new one."""
    bundle.write(root, {"b.md": b"Generated by k3observe: old\n"})
    bundle._stage(root, bundle.changes(root, {"b.md": b"Generated by k3observe: new\n"}))


def test_an_unfinished_render_is_reported_by_check_and_completed_by_the_next_command(
    k3observe: Run, config: Path
) -> None:
    out = config.parent / "out"
    for command in (["check", "out"], ["test", "out"], ["render", "-o", "out"]):
        unfinished(out)
        report = k3observe("render", "-o", "out", "--check")
        assert report.returncode == 1
        assert "an interrupted render is unfinished; run `k3observe render` to complete it" in report.stderr
        assert (out / "b.md").read_bytes().endswith(b"old\n")
        k3observe(*command)
        assert not bundle.unfinished(out)
        if command[0] != "render":
            assert (out / "b.md").read_bytes().endswith(b"new\n"), command
        else:
            assert not (out / "b.md").exists(), "no longer rendered"
            assert (out / "prometheus/prometheus.yml").exists()


@pytest.mark.parametrize(("text", "message"), [
    (SMALLEST.replace("10.0.0.1:8000", "http://a:1/x"), "k3observe: k3observe.yaml:6: services[0].targets[0]: "),
    (SMALLEST + "lanugage: en\n", "k3observe: k3observe.yaml:7: lanugage: is no known field: did you mean 'language'?"),
    ("", "k3observe: k3observe.yaml:1: is no configuration"),
    ("{" * 9999, "k3observe: k3observe.yaml:1: "),
])  # fmt: skip
def test_a_bad_configuration_ends_with_2_a_message_and_an_untouched_folder(
    k3observe: Run, config: Path, text: str, message: str
) -> None:
    config.write_text(text)
    done = k3observe("render")
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert tree(config.parent).keys() == {"k3observe.yaml"}


def test_a_missing_configuration_says_how_to_write_one(k3observe: Run) -> None:
    done = k3observe("render")
    assert (done.returncode, done.stderr) == (
        2, "k3observe: k3observe.yaml: cannot be read: No such file or directory: run `k3observe init` to write one\n")


def test_a_file_in_place_of_the_folder_is_refused(k3observe: Run, config: Path) -> None:
    done = k3observe("render", "-o", "k3observe.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("k3observe: k3observe.yaml: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(k3observe: Run, config: Path) -> None:
    (config.parent / "out").mkdir(mode=0o555)
    done = k3observe("render", "-o", "out")
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
