from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3observe.exporters.experts import follow
from k3observe.exporters.experts.follow import Follower


class Following:
    """A follower in a thread, the lines it passed on and the errors it saw."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self.lines: list[bytes] = []
        self.errors: list[OSError] = []
        self.looks = 0
        self._stop = threading.Event()
        self.follower = Follower(str(path), self._emit, from_start=from_start, poll_seconds=0.01)
        self._thread = threading.Thread(target=self.follower.run, args=(self._stop, self._looked), daemon=True)
        self._thread.start()
        self.wait(lambda: self.looks > 0)

    def _emit(self, block: bytes) -> None:
        assert block.endswith(b"\n")
        self.lines += block[:-1].split(b"\n")

    def _looked(self, error: OSError | None) -> None:
        self.looks += 1
        if error is not None:
            self.errors.append(error)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, (len(self.lines), self.lines[-5:], self.errors[-3:])
            time.sleep(0.005)

    def expect(self, *lines: bytes) -> None:
        self.wait(lambda: len(self.lines) >= len(lines))
        time.sleep(0.05)
        assert self.lines == list(lines)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(5)
        assert not self._thread.is_alive()


Start = Callable[..., Following]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Following] = []

    def begin(path: Path, *, from_start: bool = False) -> Following:
        running.append(Following(path, from_start=from_start))
        return running[-1]

    yield begin
    for following in running:
        following.end()


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_a_log_is_followed_from_its_end(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    append(log, b"old\n")
    following = start(log)
    append(log, b"new\nhalf")
    following.expect(b"new")
    append(log, b" line\n")
    following.expect(b"new", b"half line")


def test_a_log_is_read_from_its_start_when_asked(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    append(log, b"old\n")
    start(log, from_start=True).expect(b"old")


def test_a_log_that_appears_later_is_read_from_its_start(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    following = start(log)
    assert isinstance(following.errors[0], FileNotFoundError)
    append(log, b"first\n")
    following.expect(b"first")


def test_no_line_is_lost_while_a_log_is_renamed_again_and_again(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    append(log, b"")
    following = start(log)
    expected = []
    for generation in range(40):
        with log.open("ab", buffering=0) as file:
            for number in range(50):
                expected.append(b"line %d of %d" % (number, generation))
                file.write(expected[-1] + b"\n")
            for age in range(generation, 0, -1):
                os.rename(f"{log}.{age}", f"{log}.{age + 1}")
            os.rename(log, f"{log}.1")
            append(log, b"")
            expected.append(b"late line of %d" % generation)
            file.write(expected[-1] + b"\n")  # the writer opens the new file after its next line
        if generation % 8 == 0:
            time.sleep(0.03)
    following.wait(lambda: len(following.lines) >= len(expected))
    assert sorted(following.lines) == sorted(expected)


def test_a_log_emptied_in_place_is_read_on_from_its_start(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    append(log, b"a much longer line from before\n")
    following = start(log)
    os.truncate(log, 0)
    append(log, b"one\n")
    following.expect(b"one")


def test_a_log_emptied_and_grown_beyond_its_old_size_is_read_from_its_start(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    append(log, b"before\n")
    following = start(log)
    with log.open("r+b") as file:
        file.truncate(0)
        file.write(b"10:02 first\n10:03 second\n")
    following.wait(lambda: len(following.lines) >= 2)
    assert following.lines == [b"10:02 first", b"10:03 second"]


def test_lines_come_through_a_named_pipe_whose_writer_comes_and_goes(tmp_path: Path, start: Start) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    following = start(pipe)
    for text in (b"one\ntwo\n", b"three\n"):
        with pipe.open("wb") as file:
            file.write(text)
    following.expect(b"one", b"two", b"three")


def test_a_full_pipe_does_not_hold_its_writer_up(tmp_path: Path, start: Start) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    following = start(pipe)
    lines = [b"%09d" % number for number in range(300_000)]
    began = time.monotonic()
    with pipe.open("wb") as file:
        file.write(b"\n".join(lines) + b"\n")
    assert time.monotonic() - began < 5
    following.wait(lambda: len(following.lines) == len(lines))
    assert following.lines == lines


def test_a_line_of_10_mb_is_passed_over_and_the_next_is_read(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    following = start(log)
    append(log, b"x" * 10_000_000 + b"\nnext\n")
    following.wait(lambda: b"next" in following.lines)
    assert following.lines[-1] == b"next"
    assert following.follower.long_lines == 1
    assert sum(map(len, following.lines)) < follow.CHUNK + 10


def test_binary_junk_does_not_stop_it(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "engine.log"
    following = start(log)
    append(log, b"\xff\xfe\x00\n" + bytes(range(256)).replace(b"\n", b"") + b"\n\n")
    following.wait(lambda: len(following.lines) == 3)


def test_what_is_neither_file_nor_pipe_is_refused(tmp_path: Path, start: Start) -> None:
    assert "neither a file nor a pipe" in str(start(tmp_path).errors[0])
    assert "neither a file nor a pipe" in str(start(Path("/dev/zero")).errors[0])


def test_standard_input_is_read_to_its_end() -> None:
    program = (
        "import sys, threading\n"
        "from k3observe.exporters.experts.follow import Follower\n"
        "Follower('-', sys.stdout.buffer.write).run(threading.Event(), lambda error: error and print(error))\n")
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"one\ntwo\n", capture_output=True, timeout=20, check=True)
    ended = b"standard input has ended: start the sidecar anew with the engine"
    assert sorted(done.stdout.splitlines()) == [b"one", ended, b"two"]


def test_a_hole_of_a_terabyte_is_passed_over_at_once(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "log"
    append(path, b"1\n")
    following = start(path)
    with path.open("r+b") as file:  # emptied under a writer that does not append
        file.truncate(0)
        file.seek(1 << 40)
        file.write(b"2\n")
        file.flush()
        following.wait(lambda: bool(following.lines))
        file.seek(1 << 41)
        file.write(b"3\n")
        file.truncate(1 << 42)
    following.wait(lambda: len(following.lines) == 2)
    append(path, b"4\n")
    following.wait(lambda: len(following.lines) == 3)
    assert [line.strip(b"\0") for line in following.lines] == [b"2", b"3", b"4"]


def test_half_a_line_of_a_writer_that_died_is_not_joined_to_the_next_writers_first(
    tmp_path: Path, start: Start
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    following = start(pipe)
    with pipe.open("wb") as writer:
        writer.write(b"1\nhalf")
    following.expect(b"1")
    with pipe.open("wb") as writer:
        writer.write(b"2\n")
    following.expect(b"1", b"2")
