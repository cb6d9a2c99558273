"""Configuration mistakes are told with file, line, field, what is wrong and what to do, and never show a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.config.errors import ConfigError
from k3observe.notify.config import load

GOOD = """\
robots:
  ops-cn:
    type: dingtalk
    token_file: token
    secret_file: secret
    language: zh-CN
    timezone: Asia/Shanghai
    mention: {users: ["13800001111"], label: owner, owners: {infra: [zhangsan]}, severities: [critical]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("https://oapi.dingtalk.com/robot/send?access_token=abc123\n")
    (tmp_path / "secret").write_text("SEC123\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "notify.yaml"
    path.write_text(text)
    return path


def test_a_full_robot_is_read_with_files_relative_to_the_configuration(folder: Path) -> None:
    (robot,) = load(write(folder, GOOD))
    assert robot.name == "ops-cn"
    assert robot.base_url == "https://oapi.dingtalk.com"
    assert robot.token_file == folder / "token"
    assert robot.mention.owners == {"infra": ("zhangsan",)}
    assert str(robot.zone) == "Asia/Shanghai"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "type: dingtalk",
            "type: dingtlk",
            ":3: robots.ops-cn.type: is no platform: 'dingtlk': did you mean",
        ),
        ("    type: dingtalk\n", "", ":2: robots.ops-cn.type: is missing"),
        ("token_file: token", "token: abc", ":4: robots.ops-cn.token: is not known here: did you mean 'token_file'?"),
        ("token_file: token", "token_file: nothere", ":4: robots.ops-cn.token_file: "),
        ("secret_file: secret", "secret_file: no", ":5: robots.ops-cn.secret_file: "),
        ("zh-CN", "zh", ":6: robots.ops-cn.language: is not spoken: 'zh': one of en, zh-CN"),
        (
            "Asia/Shanghai",
            "Asia/Shangha",
            ":7: robots.ops-cn.timezone: is no time zone this host knows",
        ),
        ("Asia/Shanghai", "../../etc/passwd", ":7: robots.ops-cn.timezone: is no time zone"),
        ('"13800001111"', "13800001111", ":8: robots.ops-cn.mention.users: is no list of texts"),
        (
            '"13800001111"',
            '"a b"',
            ":8: robots.ops-cn.mention.users: is no mobile number and no DingTalk user id",
        ),
        ("label: owner, ", "", ":8: robots.ops-cn.mention.owners: need the label"),
        ("ops-cn:", "ops/cn:", ":2: robots.ops/cn: is no name for a robot"),
        ("ops-cn:", "metrics:", ":2: robots.metrics: is no name for a robot"),
        ("language: zh-CN", "base_url: oapi.dingtalk.com", ":6: robots.ops-cn.base_url: is no http(s) URL"),
        ("language: zh-CN", "language: zh-CN\n    language: en", ":7: robots.ops-cn.language: stands twice"),
        (GOOD, "", ":1: is missing"),
        (GOOD, "robots: {}", ":1: robots: names no robot"),
        (GOOD, "robots: [1]", ":1: robots: is no mapping"),
        (GOOD, "robots: {a: 1", ":2: did not find expected"),
        (GOOD, "a: &x {}\nb: *x", ":1: "),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_do(folder: Path, old: str, new: str, expected: str) -> None:
    path = write(folder, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f"{path}{expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("platform", "who", "expected"),
    [
        ("wecom", "all", "is not known to WeCom's Markdown"),
        ("feishu", "a@example.com", "is no open id"),
        ("lark", "+8613800001111", "is no open id"),
        ("dingtalk", "张三", "ids are ASCII"),
    ],
)
def test_a_user_the_platform_cannot_mention_is_refused(folder: Path, platform: str, who: str, expected: str) -> None:
    text = f'robots:\n  a:\n    type: {platform}\n    token_file: token\n    mention: {{users: ["{who}"]}}\n'
    with pytest.raises(ConfigError, match=expected):
        load(write(folder, text))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_file", "https://oapi.dingtalk.com/robot/send?access_token=topsecret"),
        ("secret_file", "topsecret\\nline"),
        ("base_url", "https://oapi.dingtalk.com/robot/send?access_token=topsecret"),
        ("base_url", "https://user:topsecret@oapi.dingtalk.com"),
        ("token", "topsecret"),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated_in_the_message(folder: Path, field: str, value: str) -> None:
    path = write(folder, f'robots:\n  a:\n    type: dingtalk\n    {field}: "{value}"\n')
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert f":4: robots.a.{field}: " in str(caught.value)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["", "two words", "a\nb", "ключ", "x" * 5000, "https://oapi.dingtalk.com/robot/send"]
)
def test_a_file_that_holds_no_token_is_named_without_its_content(folder: Path, content: str) -> None:
    (folder / "token").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(write(folder, GOOD))
    assert str(folder / "token") in str(caught.value)
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--config.file", "missing.yaml"], 2, "missing.yaml: cannot be read: No such file or directory"),
        (["--config.file", "bad.yaml"], 2, "bad.yaml:1: robots: names no robot"),
        (["--web.listen-address", "nowhere"], 2, "is no address"),
        (["--queue.length", "0"], 2, "is not between 1 and 10000"),
        (["--web.config.file", "missing.yml"], 2, "missing.yml: cannot read"),
        (["--web.listen-address", "192.0.2.1:1"], 1, "192.0.2.1:1 cannot be used"),
        (["--version"], 0, "k3observe-notify "),
        (["--help"], 0, "examples:"),
    ],
)
def test_the_command_ends_with_the_right_code_and_no_traceback(
    folder: Path, arguments: list[str], code: int, expected: str
) -> None:
    write(folder, GOOD)
    (folder / "bad.yaml").write_text("robots: {}\n")
    command = [sys.executable, "-m", "k3observe.notify.main", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    assert done.returncode == code, done.stderr
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
