from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3observe.exporters.vllm_plugin import fileformat
from tests.exporters.vllm_plugin import balancer
from tests.exporters.vllm_plugin.balancer import Tensor
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


def test_every_interval_holds_exactly_what_was_routed(worker: pytest.MonkeyPatch, published: Path) -> None:
    engine = start(worker)
    begin(engine)
    total = 0
    for sequence in range(1, 25):
        run_to_publication(engine)
        steps = engine.real
        [routed] = engine.taken()
        total += routed
        found = publication(published, sequence)
        [model] = found.models
        assert (matrix(model.counts, routed) == routed).all()
        assert (matrix(model.totals, routed) == total).all()
        assert (model.steps, model.recorded) == (steps, steps)
        assert (found.step, model.layers) == (engine.state.expert_rearrangement_step, (1, 2, 3))


def test_dummy_and_profile_steps_and_the_warm_up_reach_no_file(worker: pytest.MonkeyPatch, published: Path) -> None:
    engine = start(worker, interval=40)
    assert engine.state.expert_rearrangement_step % EVERY == 0
    engine.forward()
    assert engine.state.step(True, True) == "profiled"
    engine.forward()  # warm-up counts stay in the pass
    begin(engine)
    for sequence in range(1, 5):
        engine.step()
        engine.step(dummy=True)
        run_to_publication(engine)
        engine.state.step(True, True)
        real = engine.real
        [routed] = engine.taken()
        [model] = publication(published, sequence).models
        assert (matrix(model.counts, routed) == routed).all()
        assert model.recorded == real == model.steps


def test_on_a_device_only_the_writers_thread_waits_and_every_count_is_right(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    worker.setattr(balancer.Event, "latency", 0.02)
    worker.setattr(balancer.Event, "waited_in", set())
    engine = start(worker, tensor=balancer.DeviceTensor)
    begin(engine)
    total = 0
    for _ in range(12):  # faster than the device: publications are skipped, and their counts come with later ones
        run_to_publication(engine)
        total += engine.taken()[0]
        time.sleep(0.01)
    time.sleep(0.2)
    run_to_publication(engine)
    total += engine.taken()[0]
    path = published / fileformat.file_name("test", 0, 0)
    last = engine.state.expert_rearrangement_step
    found = wait_for(lambda: (read := fileformat.decode(path.read_bytes())).step == last and read)
    [model] = found.models
    assert (matrix(model.totals, total) == total).all()
    assert model.logical == fileformat.array("h", [*range(8)] * 3)
    assert found.dropped > 0
    assert balancer.Event.waited_in == {"k3observe-experts"}


def test_nothing_is_read_while_a_cuda_graph_is_captured(
    worker: pytest.MonkeyPatch, published: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(worker, tensor=balancer.DeviceTensor)
    worker.setattr(__import__("torch").cuda, "is_current_stream_capturing", lambda: True)
    begin(engine)
    assert "while a CUDA graph is captured" in warnings(caplog)[0]


def test_steps_the_engine_does_not_count_are_published_as_not_recorded(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker)
    begin(engine)
    engine.state.recording = False
    run_to_publication(engine)
    [model] = publication(published, 1).models
    assert (model.steps, model.recorded, sum(model.counts)) == (EVERY, 0, 0)
    engine.state.recording = True
    engine.taken()
    run_to_publication(engine)
    [routed] = engine.taken()
    [model] = publication(published, 2).models
    assert (model.recorded, model.total_recorded, model.total_steps) == (EVERY, EVERY, 2 * EVERY)
    assert (matrix(model.counts, routed) == routed).all()


def test_with_detail_rank_columns_are_the_ranks(worker: pytest.MonkeyPatch, published: Path) -> None:
    worker.setenv("K3OBSERVE_EXPERTS_DETAIL", "rank")
    engine = start(worker)
    begin(engine)
    run_to_publication(engine)
    [routed] = engine.taken()
    [model] = publication(published, 1).models
    assert (model.columns, model.logical) == (4, None)
    assert (np.array(model.counts).reshape(3, 4) == routed.reshape(3, 4, 2).sum(-1)).all()


def test_the_map_is_the_one_its_interval_was_routed_by(worker: pytest.MonkeyPatch, published: Path) -> None:
    engine = start(worker, interval=20)
    reverse = np.tile(np.arange(8)[::-1], (3, 1))

    def move(_: Any) -> None:
        engine.states[0].physical_to_logical_map.values[:] = reverse

    engine.state.moves = [move]
    begin(engine)  # the first rearrangement comes at the first mark
    engine.states[0].physical_to_logical_map.values[:] = np.arange(8)
    found = []
    for sequence in range(1, 7):
        run_to_publication(engine)
        [model] = publication(published, sequence).models
        assert model.logical is not None
        found.append((model.logical[0], model.settled, model.map_number))
    # Moved by hand within the first interval, by the engine at the end of the fourth.
    assert found == [
        (7, False, 0), (0, True, 1), (0, True, 1), (0, True, 1), (7, True, 2), (7, True, 2)]


def test_an_interval_in_which_experts_move_in_the_background_says_so(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker, interval=40)
    engine.state.is_async = True

    def begin_move(state: Any) -> None:
        engine.states[0].rebalanced = True
        state.expert_load_window_step = state.expert_load_window_step

    engine.state.moves = [begin_move]
    begin(engine)
    run_to_publication(engine)  # 40: the move begins
    assert engine.state.expert_rearrangement_step == 0
    [begun] = publication(published, 1).rearrangements
    assert (begun.number, begun.seconds) == (1, None)
    engine.step()
    engine.states[0].physical_to_logical_map.values[0] = 1
    engine.states[0].rebalanced = False
    run_to_publication(engine)
    found = publication(published, 2)
    assert not found.models[0].settled
    [ended] = found.rearrangements
    assert ended.seconds is not None
    assert ended.seconds > 0


def test_rearrangements_are_counted_with_their_duration_and_profiles_are_not(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker, interval=10)
    engine.state.moves = [lambda _: time.sleep(0.02)]
    begin(engine)
    engine.state.step(True, True)
    for _ in range(4):
        run_to_publication(engine)
    events = publication(published, 4).rearrangements
    numbers = [event.number for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) >= 2
    assert all(0.02 <= (event.seconds or 0) < 1 for event in events)


def test_two_models_are_published_apart_also_when_they_have_one_name(
    worker: pytest.MonkeyPatch, published: Path
) -> None:
    engine = start(worker, names=("moe", "moe"))
    begin(engine)
    run_to_publication(engine)
    routed = engine.taken()
    found = publication(published, 1)
    assert [model.model for model in found.models] == ["moe", "moe (draft)"]
    for model, counts in zip(found.models, routed, strict=True):
        assert (matrix(model.counts, counts) == counts).all()


def test_a_resized_group_starts_again_with_its_own_columns(worker: pytest.MonkeyPatch, published: Path) -> None:
    engine = start(worker)
    begin(engine)
    run_to_publication(engine)
    before = publication(published, 1)
    balancer.GROUP.world_size = 8
    [state] = engine.states
    state.expert_load_pass = Tensor(np.zeros((3, 16), np.int32))
    state.expert_load_window = Tensor(np.zeros((20, 3, 16), np.int32))
    state.physical_to_logical_map = Tensor(np.tile(np.arange(16), (3, 1)))
    engine.since = [np.zeros((3, 16), np.int64)]
    engine.state.expert_rearrangement_step = 0
    begin(engine)
    run_to_publication(engine)
    [routed] = engine.taken()
    after = wait_for(lambda: (found := publication(published, 1)).run != before.run and found)
    assert (after.ep_size, after.cycle, after.models[0].columns) == (8, 0, 16)
    assert (matrix(after.models[0].totals, routed) == routed).all()
