"""The thread with a deadline, and what it may not do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from k3observe.exporters.gpu.lane import Gate, Lane


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_result_after_the_deadline_is_thrown_away_and_the_delay_is_told_once() -> None:
    release, published, late = threading.Event(), list[int](), list[bool]()
    calls = iter(range(100))

    def work(_overdue: Callable[[], bool]) -> Callable[[], None]:
        number = next(calls)
        if number == 0:
            release.wait()
        return lambda: published.append(number)

    lane = Lane("test", work, lambda: late.append(True), interval=0.01, timeout=0.05)
    lane.start()
    time.sleep(0.1)
    for _ in range(3):
        lane.check()
    assert (late, published) == ([True], [])
    release.set()
    _until(lambda: published)
    lane.stop()
    assert published[0] == 1
    assert late == [True]


def test_a_call_that_was_late_is_told_even_when_nobody_looked_meanwhile() -> None:
    published, late = list[bool](), list[bool]()

    def work(overdue: Callable[[], bool]) -> Callable[[], None]:
        while not overdue():
            time.sleep(0.005)
        return lambda: published.append(True)

    lane = Lane("test", work, lambda: late.append(True), interval=0.01, timeout=0.02)
    lane.start()
    _until(lambda: len(late) >= 2)
    lane.stop()
    assert published == []


def test_a_closed_gate_holds_calls_back_and_tells_whether_one_is_still_out() -> None:
    gate, release, running = Gate(), threading.Event(), threading.Event()

    def work(_overdue: Callable[[], bool]) -> Callable[[], None]:
        running.set()
        release.wait()
        return lambda: None

    lane = Lane("test", work, lambda: None, 0.01, 5, gate)
    lane.start()
    assert not running.wait(0.05)
    gate.open()
    assert running.wait(5)
    assert not gate.close(0.02)
    release.set()
    assert gate.close(5)
    running.clear()
    assert not running.wait(0.05)
    lane.stop()


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_gate_that_stays_closed_lets_nobody_in(seconds: float) -> None:
    assert not Gate().enter(seconds)
