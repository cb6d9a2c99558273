from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from k3observe.exporters.vllm_plugin import fileformat, patch, writer
from tests.exporters.vllm_plugin import balancer
from tests.exporters.vllm_plugin.publications import (
    EVERY,
    begin,
    matrix,
    publication,
    run_to_publication,
    start,
    wait_for,
    warnings,
)


def test_a_failing_publication_leaves_the_engine_alone_and_switches_off_after_three(
    worker: pytest.MonkeyPatch, published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(worker)
    begin(engine)
    del engine.states[0].expert_load_window
    for _ in range(6 * EVERY):
        engine.state.expert_rearrangement_step += 1
        engine.state.recording = False
        assert engine.state.step(True) == "stepped"
    assert len(warnings(caplog)) == 3
    assert "no longer published, the engine is not affected" in warnings(caplog)[-1]
    assert not getattr(engine.state.step, patch.MARK).on


def test_a_missing_directory_is_said_three_times_and_then_no_more(
    worker: pytest.MonkeyPatch, published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker.setenv("K3OBSERVE_EXPERTS_DIR", str(published / "missing"))
    engine = start(worker)
    begin(engine)
    publisher = getattr(engine.state.step, patch.MARK)

    def off() -> bool:
        run_to_publication(engine)
        time.sleep(0.01)
        return not publisher.on

    wait_for(off)
    assert len(warnings(caplog)) == 3
    assert "missing" in warnings(caplog)[0]


def test_an_exception_of_the_engine_passes_through(worker: pytest.MonkeyPatch) -> None:
    engine = start(worker)

    def fail(_: Any) -> None:
        raise ArithmeticError("the engine's own")

    engine.state.moves = [fail]
    engine.state.expert_rearrangement_step = 59
    with pytest.raises(ArithmeticError, match="the engine's own"):
        engine.step()


def test_an_interval_not_below_the_window_is_refused_with_the_numbers(
    worker: pytest.MonkeyPatch, published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(worker, window=EVERY)
    for _ in range(20):
        engine.step()
    assert len(warnings(caplog)) == 1
    assert "is 5: it must be below EPLB's window_size, which is 5" in warnings(caplog)[0]
    assert not list(published.iterdir())


def test_when_the_writer_is_behind_the_next_publication_covers_both_intervals(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker)
    begin(engine)
    publisher = getattr(engine.state.step, patch.MARK)
    with worker.context() as behind:
        behind.setattr(publisher._writer, "full", lambda: True)
        run_to_publication(engine)
    run_to_publication(engine)
    [routed] = engine.taken()
    found = publication(published, 1)
    assert found.dropped == 1
    assert found.models[0].steps == 2 * EVERY
    assert (matrix(found.models[0].counts, routed) == routed).all()


def test_a_ring_that_went_round_is_not_miscounted(worker: pytest.MonkeyPatch, published: Path) -> None:
    engine = start(worker)
    begin(engine)
    publisher = getattr(engine.state.step, patch.MARK)
    with worker.context() as behind:
        behind.setattr(publisher._writer, "full", lambda: True)
        for _ in range(5):
            run_to_publication(engine)
    run_to_publication(engine)  # 30 steps in a window of 20: a mark only
    engine.taken()
    run_to_publication(engine)
    [routed] = engine.taken()
    assert (matrix(publication(published, 1).models[0].totals, routed) == routed).all()


def test_a_forked_worker_publishes_with_a_writer_and_a_name_of_its_own(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker)
    begin(engine)
    run_to_publication(engine)
    parent = publication(published, 1)
    child = os.fork()
    if not child:
        status = 1
        try:
            balancer.GROUP.rank_in_group = 1
            begin(engine)
            run_to_publication(engine)
            [routed] = engine.taken()
            found = publication(published, 1, rank=1)
            status = int(found.run == parent.run or not (matrix(found.models[0].totals, routed) == routed).all())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_idle_writer_keeps_its_file_alive(worker: pytest.MonkeyPatch, published: Path) -> None:
    worker.setattr(fileformat, "HEARTBEAT_SECONDS", 0.05)
    engine = start(worker)
    begin(engine)
    run_to_publication(engine)
    publication(published, 1)
    path = published / fileformat.file_name("test", 0, 0)
    os.utime(path, (1, 1))
    wait_for(lambda: path.stat().st_mtime > 1)
    assert publication(published, 1).sequence == 1


def test_files_are_readable_for_all_and_what_earlier_engines_left_is_removed(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    left = published / fileformat.file_name("gone", 0, 0)
    alive = published / fileformat.file_name("alive", 0, 0)
    elsewhere = published / fileformat.file_name("gone", 0, 1)
    for path in (left, alive, elsewhere):
        path.write_bytes(b"")
    for path in (left, elsewhere):
        os.utime(path, (1, time.time() - writer.LEFT_OVER_SECONDS - 1))
    before = os.umask(0o077)
    try:
        engine = start(worker)
        begin(engine)
        run_to_publication(engine)
        publication(published, 1)
        wait_for(lambda: not left.exists())
    finally:
        os.umask(before)
    assert alive.exists()
    assert elsewhere.exists()
    assert stat.S_IMODE((published / fileformat.file_name("test", 0, 0)).stat().st_mode) == 0o644
