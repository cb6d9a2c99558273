"""``k3observe check`` over our bundle and over other people's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import SMALLEST, Run

FULL = (Path(__file__).parents[1] / "config" / "full.yaml").read_text()
BAD_RULE = "groups:\n  - name: g\n    rules:\n      - alert: A\n        expr: rate(x[15s]) > 1\n"


@pytest.mark.parametrize("text", [
    SMALLEST, FULL, FULL.replace("prometheus: full", "prometheus: fragment"),
    SMALLEST.replace("vllm", "sglang").replace("0.33", "0.5.23"),
    SMALLEST.replace("name: vllm, version: \"0.33\"", "name: mindie, version: \"2.0\""),
], ids=["smallest", "full", "fragment", "sglang", "mindie"])  # fmt: skip
def test_our_own_bundle_is_clean(k3observe: Run, config: Path, text: str) -> None:
    config.write_text(text)
    k3observe("render", "-o", "out")
    done = k3observe("check", "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1].endswith("nothing found")


def test_a_finding_is_one_line_with_its_place_and_what_to_do_and_ends_with_1(k3observe: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(BAD_RULE)
    done = k3observe("check", ".")
    assert (done.returncode, done.stdout) == (
        1, "mine.yml:5: promql/rate-window: the window is shorter than 4 intervals of 15s: rate(x{}[15s]): "
           "use at least [1m]\n")  # fmt: skip
    assert done.stderr.splitlines()[-1] == "1 files in . checked, 1 found"


def test_machines_read_the_same_as_json(k3observe: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text(BAD_RULE)
    done = k3observe("check", "mine.yml", "--output", "json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["files"] == 1
    assert report["findings"] == [{
        "check": "promql/rate-window", "file": "mine.yml", "line": 5, "value": "rate(x{}[15s])",
        "what": "the window is shorter than 4 intervals of 15s", "fix": "use at least [1m]",
        "page": "docs/checks/promql/rate-window.md"}]  # fmt: skip


def test_a_comment_switches_a_check_off_for_its_rule_or_at_the_top_for_the_file(k3observe: Run, tmp_path: Path) -> None:
    rule = BAD_RULE.partition("rules:\n")[2]
    comment = "      # k3observe disable promql/rate-window: scraped every second\n"
    (tmp_path / "mine.yml").write_text(BAD_RULE.replace(rule, comment + rule + rule))
    assert [line.split(":")[1] for line in k3observe("check").stdout.splitlines()] == ["8"]
    (tmp_path / "mine.yml").write_text(comment.strip() + "\n" + BAD_RULE)
    assert k3observe("check").returncode == 0


def test_it_uses_what_the_configuration_says(k3observe: Run, config: Path) -> None:
    config.write_text(SMALLEST + "prometheus: {scrape_interval: 1s, evaluation_interval: 15s}\n")
    (config.parent / "mine.yml").write_text(BAD_RULE)
    assert k3observe("check").returncode == 0


def test_a_bad_configuration_ends_with_2(k3observe: Run, config: Path) -> None:
    config.write_text("version: 2\n")
    done = k3observe("check")
    assert done.returncode == 2
    assert "k3observe.yaml:1: version: is not one of 1" in done.stderr


@pytest.mark.parametrize(("argument", "message"), [
    ("nope", "k3observe: nope: does not exist"),
    (".", "k3observe: .: holds nothing to check: name a folder of rules or configurations"),
])
def test_nothing_to_check_ends_with_2(k3observe: Run, argument: str, message: str) -> None:
    done = k3observe("check", argument)
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def test_binary_files_and_links_are_survived(k3observe: Run, tmp_path: Path) -> None:
    (tmp_path / "binary.yml").write_bytes(b"groups:\n" + bytes(range(256)))
    (tmp_path / "loop.yml").symlink_to("loop.yml")
    (tmp_path / "outside.yml").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("..")
    done = k3observe("check")
    assert done.returncode == 1
    assert done.stdout == "binary.yml: yaml/syntax: is not UTF-8\n"


def test_critical_alerts_that_no_person_is_told_of_are_said_by_check_and_render(k3observe: Run, config: Path) -> None:
    notify = "notify: {receivers: {s: {webhook: {url: \"http://s.x\"}}}, routes: {default: s, rebalance: s}}\n"
    config.write_text(SMALLEST + notify)
    assert k3observe("check").returncode == 0
    scaling = notify.replace("rebalance: s", "scale_out: t").replace("{s: ", '{t: {webhook: {url: "http://t.x"}}, s: ')
    config.write_text(SMALLEST + scaling)
    done = k3observe("check")
    assert done.returncode == 1
    assert "notify/critical-to-machine: critical alerts reach only the webhook t, and no person: " in done.stdout
    assert done.stdout.startswith(f"k3observe.yaml:{len(SMALLEST.splitlines()) + 1}: ")
    for told in (k3observe("render", "-o", "out").stderr, k3observe("explain").stdout):
        assert "critical alerts reach only the webhook t, and no person (KVCacheSaturated)" in told
    config.write_text("# k3observe disable notify/critical-to-machine: t pages\n" + SMALLEST + scaling)
    assert k3observe("check", "k3observe.yaml").returncode == 0
