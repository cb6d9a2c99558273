"""What all commands have in common."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from k3observe.cli.main import COMMANDS, cli
from k3observe.version import __version__
from tests.cli.conftest import Run


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_how_it_is_called(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    text = command.get_help(click.Context(command, info_name=name, parent=click.Context(cli, info_name="k3observe")))
    assert re.search(rf"^\s+k3observe {name}\b", text, re.M), "an example"
    assert len(text.splitlines()) < 60


def test_the_help_lists_every_command_and_loads_none(k3observe: Run) -> None:
    done = k3observe("--help")
    assert done.returncode == 0
    assert all(re.search(rf"^  {name} ", done.stdout, re.M) for name in COMMANDS)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, k3observe.cli.main; print(*sys.modules)"], capture_output=True, text=True,
        check=True).stdout.split()  # fmt: skip
    assert not {"pydantic", "yaml", "jinja2", "grafanalib", "promql_parser"} & set(loaded)


def test_the_version_is_the_packages(k3observe: Run) -> None:
    assert k3observe("--version").stdout == f"k3observe {__version__}\n"


def test_an_unknown_command_or_option_ends_with_2(k3observe: Run) -> None:
    for arguments in (["rendr"], ["render", "--nope"], ["check", "a", "b"], ["check", "--output", "xml"]):
        done = k3observe(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert "Error:" in done.stderr


def test_a_reader_that_goes_away_is_no_accident(config: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m k3observe render --stdout | head -1"], cwd=config.parent, check=False,
        capture_output=True, text=True)  # fmt: skip
    assert done.stdout == "---\n"
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_the_output_is_said(config: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m k3observe schema > /dev/full"], cwd=config.parent, check=False,
        capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "k3observe: output: cannot be used: No space left on device\n"


def test_chinese_is_printed_whatever_the_locale_says(k3observe: Run, config: Path) -> None:
    config.write_text(config.read_text() + "language: zh-CN\n")
    for arguments in (["explain", "EngineDown"], ["render", "--diff"]):
        done = k3observe(*arguments, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
        assert "推理引擎" in done.stdout, arguments


@pytest.mark.parametrize("command", [["render", "-o", "out"], ["explain"], ["check"], ["explain", "EngineDown"]])
def test_an_engine_newer_than_all_that_is_known_is_warned_of_and_no_error(
    k3observe: Run, config: Path, command: list[str]
) -> None:
    config.write_text(config.read_text().replace("0.33", "0.99"))
    done = k3observe(*command)
    assert done.returncode == 0
    assert ("k3observe: warning: k3observe.yaml:5: services[0].engine.version: vLLM 0.99 is newer than the newest "
            "known, 0.33, whose metrics are assumed") in done.stderr  # fmt: skip
    config.write_text(config.read_text() + "language: zh-CN\n")
    assert "比已知的最新版本 0.33 更新" in k3observe(*command).stderr


@pytest.mark.parametrize("version", ["0.33", "0.33.7", "v0.28.0", "0.28.0rc1", "0.28.1.dev12+gabc", "0.5"])
def test_every_spelling_of_a_known_version_is_taken_without_a_word(
    k3observe: Run, config: Path, version: str
) -> None:
    config.write_text(config.read_text().replace("0.33", version))
    assert (k3observe("explain").returncode, k3observe("explain").stderr) == (0, "")


def test_nothing_is_coloured_when_piped(k3observe: Run, config: Path) -> None:
    for arguments in (["render"], ["check"], ["explain"], ["render", "--diff"], ["--help"]):
        done = k3observe(*arguments, env={"TERM": "xterm-256color", "COLORTERM": "truecolor"})
        assert "\x1b" not in done.stdout + done.stderr, arguments


def test_a_disk_that_fills_up_during_init_leaves_no_half_file(tmp_path: Path) -> None:
    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = subprocess.run(
        [sys.executable, "-m", "k3observe", "init"], cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=full)  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "k3observe: k3observe.yaml: cannot be written: File too large\n")
    assert list(tmp_path.iterdir()) == []
