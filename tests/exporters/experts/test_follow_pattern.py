from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3observe.drill.servers import wait_until
from k3observe.exporters.experts import follow_pattern
from k3observe.exporters.experts.follow_pattern import PatternFollower


@pytest.fixture
def heard() -> list[bytes]:
    return []


@pytest.fixture
def looks() -> list[OSError | None]:
    return []


@pytest.fixture
def following(tmp_path: Path, heard: list[bytes], looks: list[OSError | None]) -> Iterator[PatternFollower]:
    (tmp_path / "there.log").write_text("before the start\n")
    follower, stop = PatternFollower(f"{tmp_path}/*.log", heard.append), threading.Event()
    thread = threading.Thread(target=follower.run, args=(stop, looks.append), daemon=True)
    thread.start()
    wait_until(lambda: looks, "the first look", 10)
    yield follower
    stop.set()
    thread.join(10)


def test_files_that_appear_are_read_from_their_start_and_those_there_from_their_end(
    tmp_path: Path, heard: list[bytes], following: PatternFollower
) -> None:
    time.sleep(0.5)
    with (tmp_path / "there.log").open("a") as log:
        log.write("after\n")
    (tmp_path / "new.log").write_text("first\nsecond\n")
    (tmp_path / "new.log.1").write_text("a generation, not a log\n")
    wait_until(lambda: sorted(b"".join(heard).split()) == [b"after", b"first", b"second"], "the lines", 15)


def test_only_the_files_written_last_are_followed(
    tmp_path: Path, heard: list[bytes], following: PatternFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_pattern, "MAX_FILES", 2)
    os.utime(tmp_path / "there.log", (1, 1))
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text(f"{name}\n")
    wait_until(lambda: sorted(b"".join(heard).split()) == [b"a", b"b"], "the new files", 15)
    with (tmp_path / "a.log").open("a") as log:
        log.write("more\n")
    wait_until(lambda: b"more" in b"".join(heard), "a file that goes on", 15)


def test_no_file_is_told_as_such(tmp_path: Path) -> None:
    looks: list[OSError | None] = []
    stop = threading.Event()
    follower = PatternFollower(f"{tmp_path}/*.log", lambda lines: None)
    thread = threading.Thread(target=follower.run, args=(stop, looks.append), daemon=True)
    thread.start()
    wait_until(lambda: looks, "the first look", 10)
    stop.set()
    thread.join(10)
    assert "no file matches" in str(looks[0])
