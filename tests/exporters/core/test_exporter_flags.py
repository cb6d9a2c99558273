"""Flags, their variables and the file of flags, in the real process: what wins, what is refused, and what is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.exporters.exporter_process import PROGRAM, call


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "exporter.yaml"
    config.write_text("collect: [gpu]\ngpu.list: [f1, f2]\ngpu.fast: no\nlog.level: info\nonce: true\n")
    done = call(f"--config.file={config}")
    assert "list ['f1', 'f2'] fast False" in done.stderr
    assert done.returncode == 0
    done = call(K3OBSERVE_CONFIG_FILE=str(config), K3OBSERVE_GPU_LIST="v1,v2", K3OBSERVE_GPU_FAST="true")
    assert "list ['v1', 'v2'] fast True" in done.stderr
    done = call(f"--config.file={config}", "--gpu.list=c", "--no-gpu.fast", K3OBSERVE_GPU_LIST="v")
    assert "list ['c'] fast False" in done.stderr
    done = call("--collect=gpu", K3OBSERVE_ONCE="1")
    assert done.returncode == 0


@pytest.mark.parametrize(("flags", "file", "message"), [
    ((), "", "--collect: name at least one of gpu, npu, experts, kv-cache"),
    (("--collect=cpu",), "", "--collect: no collector 'cpu': choose from gpu, npu, experts, kv-cache"),
    (("--collect=gpu", "--log.leve=info"), "", "--log.leve: unknown flag: did you mean --log.level?"),
    (("--collect=gpu", "--npu.mode=good"), "",
     "--npu.mode: no such flag of a running collector: is npu missing in --collect?"),
    (("--collect=gpu", "stray"), "", "'stray': arguments without a flag are not accepted"),
    (("--collect=gpu", "--log.format=xml"), "", "--log.format: invalid choice"),
    (("--collect=gpu", "--web.listen-address=9"), "", "--web.listen-address: '9' is no address"),
    (("--collect=gpu", "--web.telemetry-path=metrics"), "", "--web.telemetry-path: 'metrics' is no path"),
    (("--collect=gpu", "--textfile=x.txt"), "", "--textfile: 'x.txt': node_exporter reads only files named *.prom"),
    (("--collect=gpu", "--web.config.file=/nonexistent"), "", "/nonexistent: cannot read: No such file"),
    ((), "collect: gpu\nlog.leve: info\n", "exporter.yaml:2: log.leve: unknown flag: did you mean log.level?"),
    ((), "collect: gpu\n--log.level: info\n", "exporter.yaml:2: log.level: unknown flag: did you mean log.level?"),
    ((), "collect: [gpu]\ngpu.mod: good\n", "exporter.yaml:2: gpu.mod: unknown flag: did you mean gpu.mode?"),
    ((), "collect: [gpu, gpuu]\n", "exporter.yaml:1: collect: no collector 'gpuu'"),
    ((), "collect: gpu\nweb.listen-address: [':1', ':70000']\n",
     "exporter.yaml:2: web.listen-address: ':70000' is no address"),
    (("--collect=gpu", "--once.timeout=nan"), "", "--once.timeout: 'nan' is no duration such as 30s or 5m"),
    (("--collect=gpu", "--once.timeout=61m"), "", "--once.timeout: 61m is not between 0s and 3600s"),
    (("--collect=experts", "--experts.ranks=1_0"), "", "--experts.ranks: '1_0' is no number"),
    ((), "collect: gpu\n\nlog.level: loud\n", "exporter.yaml:3: log.level: invalid choice: 'loud'"),
    ((), "collect: gpu\nonce: perhaps\n", "exporter.yaml:2: once: 'perhaps' is neither true nor false"),
    ((), "collect: gpu\ncollect: npu\n", "exporter.yaml:2: collect: given twice"),
    ((), "collect: gpu\nlog.level: [info, warn]\n", "exporter.yaml:2: log.level: takes one value, not a list"),
    ((), "collect: gpu\nlog.level: {a: b}\n", "exporter.yaml:2: log.level: must be a value or a list of values"),
    ((), "collect: [gpu\n", "exporter.yaml:2: not YAML"),
    ((), "a: &x 1\nb: *x\n", "exporter.yaml:2: *x: aliases are not supported"),
    ((), "- gpu\n", "exporter.yaml:1: must be a mapping"),
    ((), "[" * 500, "exporter.yaml:1: nested deeper than 16"),
    (("--config.file=/nonexistent",), "", "/nonexistent: cannot read: No such file or directory"),
])
def test_bad_input_ends_with_2_and_says_where_and_what(
    tmp_path: Path, flags: tuple[str, ...], file: str, message: str
) -> None:
    if file:
        (tmp_path / "exporter.yaml").write_text(file)
        flags = (*flags, f"--config.file={tmp_path / 'exporter.yaml'}")
    done = call(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_empty_variables_and_files_are_none() -> None:
    done = call("--collect=gpu", "--once", "--web.config.file=", "--config.file=", K3OBSERVE_LOG_LEVEL="",
                K3OBSERVE_GPU_LIST="")
    assert done.returncode == 0
    assert "list None" in done.stderr


def test_collectors_named_more_than_once_add_up() -> None:
    done = call("--collect=gpu,npu", "--collect=gpu", "--collect", "npu", "--once")
    assert (done.returncode, done.stderr.count("list None")) == (0, 2)
    done = call("--once", K3OBSERVE_COLLECT="gpu,npu")
    assert (done.returncode, done.stderr.count("list None")) == (0, 2)


def test_a_bad_variable_is_named() -> None:
    done = call("--collect=gpu", K3OBSERVE_LOG_LEVEL="loud")
    assert done.returncode == 2
    assert "K3OBSERVE_LOG_LEVEL: invalid choice: 'loud'" in done.stderr


def test_help_lists_the_flags_of_all_collectors_with_their_variables() -> None:
    done = call("--help", program=PROGRAM)
    assert done.returncode == 0
    for text in ("--kv-cache.url", "--gpu.expected", "--npu.smi-path", "--experts.log-file",
                 "K3OBSERVE_WEB_LISTEN_ADDRESS", "K3OBSERVE_KV_CACHE_URL"):
        assert text in done.stdout.replace("\n", " ")


def test_the_help_has_a_heading_for_each_collector_and_a_unit_on_each_duration() -> None:
    text = call("--help", program=PROGRAM).stdout
    assert re.findall(r"^([\w-]+):$", text, re.M) == ["options", "gpu", "npu", "experts", "kv-cache"]
    flags = re.split(r"^  (?=--)", text, flags=re.M)
    durations = [flag for flag in flags if re.match(r"--\S+ DURATION", flag)]
    assert len(durations) == 10
    assert all(re.search(r"default \d+[sm]; ", " ".join(flag.split())) for flag in durations), durations
