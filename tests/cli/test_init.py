"""From a launch command to a configuration that renders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run

COMMAND = "vllm serve moonshotai/Kimi-K3 -tp 8 --max-num-seqs 16"


def test_a_command_a_file_and_standard_input_give_the_same(k3observe: Run, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(COMMAND)
    texts = {
        k3observe("init", "--from-command", COMMAND, "-o", "-").stdout,
        k3observe("init", "--from-command", "launch.sh", "-o", "-").stdout,
        k3observe("init", "--from-command", "-", "-o", "-", stdin=COMMAND).stdout,
    }
    assert len(texts) == 1
    assert "max_num_seqs: 16" in texts.pop()


def test_it_writes_a_file_says_what_it_assumed_and_never_overwrites(k3observe: Run, tmp_path: Path) -> None:
    first = k3observe("init", "--from-command", COMMAND)
    assert first.returncode == 0
    assert first.stdout == ""
    assert first.stderr.startswith("k3observe.yaml written; next: fill in targets, then `k3observe render`\nnote: ")
    written = (tmp_path / "k3observe.yaml").read_text()
    second = k3observe("init")
    assert (second.returncode, second.stderr) == (
        2, "k3observe: k3observe.yaml: exists already: name another file with -o\n")  # fmt: skip
    assert (tmp_path / "k3observe.yaml").read_text() == written


def test_without_a_command_it_writes_an_example_that_renders(k3observe: Run) -> None:
    assert k3observe("init").returncode == 0
    assert k3observe("render").returncode == 0
    assert k3observe("render", "--check").returncode == 0


@pytest.mark.parametrize("command", [
    COMMAND, "vllm serve M --expert-parallel-size 2 -tp $TP --disable-log-stats --headless --eplb-config '{bad'",
    "mindie_service & vllm serve B", "sglang serve $M --port x --config a.yaml --ssl-certfile c",
    "docker run -p 127.0.0.1:1:8000 vllm/vllm-openai --model M", "docker run vllm/vllm-openai --model M",
])  # fmt: skip
def test_in_chinese_every_comment_and_every_note_is_chinese_and_the_configuration_the_same(
    k3observe: Run, tmp_path: Path, command: str
) -> None:
    def data(text: str) -> object:
        return {**yaml.safe_load(text), "language": ""}

    english = k3observe("init", "--from-command", command, "-o", "-").stdout
    done = k3observe("init", "--from-command", command, "--language", "zh-CN")
    text = (tmp_path / "k3observe.yaml").read_text()
    said = [*done.stderr.splitlines(), *(line.partition("# ")[2] for line in text.splitlines() if "# " in line)]
    assert "\nlanguage: zh-CN " in text
    assert data(text) == data(english)
    assert len(said) > 6
    assert all(re.search("[\u4e00-\u9fff]", line) for line in said), said
    assert k3observe("render", "-o", "out").returncode == 0


@pytest.mark.parametrize(("arguments", "message"), [
    (["--from-command", "ls -l"], "k3observe: --from-command: holds no launch command of vLLM, SGLang or MindIE"),
    (["--from-command", "nope.sh"], "k3observe: nope.sh: does not exist: name the script that starts the engine"),
    (["--from-command", "vllm serve 'M"], "k3observe: --from-command: cannot be read: No closing quotation"),
    (["-o", "no/such/folder.yaml"], "k3observe: no/such/folder.yaml: cannot be written: No such file or directory"),
])  # fmt: skip
def test_bad_input_ends_with_2_and_a_message(k3observe: Run, arguments: list[str], message: str) -> None:
    done = k3observe("init", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def test_binary_input_is_survived(k3observe: Run) -> None:
    assert k3observe("init", "--from-command", "-", "-o", "-", stdin=bytes(range(256)) * 100).returncode == 2
