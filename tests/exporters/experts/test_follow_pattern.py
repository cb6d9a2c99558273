from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3observe.exporters.experts import follow_pattern
from k3observe.exporters.experts.follow_pattern import PatternFollower

Follow = Callable[[str], list[bytes]]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follow]:
    monkeypatch.setattr(follow_pattern, "LOOK_SECONDS", 0.02)
    stop = threading.Event()

    def begin(pattern: str) -> list[bytes]:
        lines: list[bytes] = []
        looks: list[OSError | None] = []
        follower = PatternFollower(pattern, lambda block: lines.extend(block.splitlines()))
        threading.Thread(target=follower.run, args=(stop, looks.append), daemon=True).start()
        _until(lambda: looks)
        return lines

    yield begin
    stop.set()


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_files_that_appear_are_read_from_their_start_and_those_there_from_their_end(
    tmp_path: Path, follow: Follow
) -> None:
    append(tmp_path / "a.log", b"old\n")
    lines = follow(f"{tmp_path}/*.log")
    time.sleep(0.1)
    append(tmp_path / "a.log", b"1\n")
    _until(lambda: lines == [b"1"])
    append(tmp_path / "b.log", b"2\n")
    _until(lambda: lines == [b"1", b"2"])


@pytest.mark.parametrize("name", ["a.log.1", "a.log-20261130.gz", "a.1.log"])
def test_a_rotated_file_is_not_read_again_under_its_new_name(tmp_path: Path, follow: Follow, name: str) -> None:
    log = tmp_path / "a.log"
    log.touch()
    lines = follow(f"{tmp_path}/a*")
    append(log, b"1\n")
    _until(lambda: lines == [b"1"])
    log.rename(tmp_path / name)
    append(log, b"2\n")
    append(tmp_path / name, b"late\n")
    _until(lambda: len(lines) == 3)
    time.sleep(0.2)
    assert sorted(lines) == [b"1", b"2", b"late"]


def test_a_copy_made_before_a_log_is_emptied_is_not_read_again(tmp_path: Path, follow: Follow) -> None:
    log = tmp_path / "a.log"
    log.touch()
    lines = follow(f"{tmp_path}/a*")
    append(log, b"1\n")
    _until(lambda: lines == [b"1"])
    shutil.copy(log, tmp_path / "a.log.1")
    log.write_bytes(b"")
    time.sleep(0.1)
    append(log, b"2\n")
    _until(lambda: len(lines) == 2)
    time.sleep(0.1)
    assert lines == [b"1", b"2"]


def test_a_log_that_gets_another_name_goes_on_where_it_was(tmp_path: Path, follow: Follow) -> None:
    append(tmp_path / "a.log", b"old\n")
    lines = follow(f"{tmp_path}/*.log")
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    time.sleep(0.2)
    append(tmp_path / "b.log", b"1\n")
    _until(lambda: lines)
    assert lines == [b"1"]
