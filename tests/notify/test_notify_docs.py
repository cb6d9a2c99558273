"""The two documentation pages say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k3observe.notify import config, dingtalk, feishu, wecom
from k3observe.notify.metrics import OUTCOMES, Metrics
from k3observe.notify.robot import STATUSES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = pytest.mark.parametrize("page", [DOCS / "notify.md", DOCS / "zh-CN" / "notify.md"], ids=["en", "zh-CN"])


@PAGES
def test_the_documented_metrics_are_those_that_are_served(page: Path) -> None:
    text = page.read_text()
    families = Metrics(["a"], 1).registry.collect()
    served = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    documented = set(re.findall(r"k3observe_notify_[a-z_]+", text))
    assert served - documented == {"k3observe_notify_build_info"}
    assert documented <= served
    assert all(f"`{word}`" in text for word in (*STATUSES, *OUTCOMES))


@PAGES
def test_the_documented_configuration_is_accepted(page: Path, tmp_path: Path) -> None:
    example = re.search(r"```yaml\n( *# notify.yaml\n.*?)```", page.read_text(), re.DOTALL)
    assert example
    (tmp_path / "secrets").mkdir()
    for name in ("ops-cn.token", "ops-cn.secret"):
        (tmp_path / "secrets" / name).write_text("abc")
    path = tmp_path / "notify.yaml"
    path.write_text(re.sub(r"^   ", "", example[1], flags=re.MULTILINE))
    assert [robot.name for robot in config.load(path)] == ["ops-cn"]


@PAGES
def test_the_documented_codes_and_limits_are_those_of_the_senders(page: Path) -> None:
    text = page.read_text()
    known = {*dingtalk._CODES, *feishu._CODES, *wecom._CODES}
    rows = re.findall(r"^\| (?:DingTalk|Feishu|WeCom|钉钉|飞书|企业微信) (\d[^|]*)\|", text, re.MULTILINE)
    codes = {int(code) for row in rows for code in re.findall(r"\d+", row)}
    assert len(codes) > 10
    assert codes <= known
    assert f"{dingtalk.MAX_BYTES:,}" in text
    assert f"{wecom.MAX_BYTES:,}" in text
