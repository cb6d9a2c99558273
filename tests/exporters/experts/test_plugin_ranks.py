"""What the files of an engine's ranks add up to."""

from __future__ import annotations

import json
import time
from array import array
from pathlib import Path

import pytest

from k3observe.exporters.experts.balance import balance
from k3observe.exporters.experts.loads import ExpertLoads, Rebalance
from k3observe.exporters.experts.plugin_files import DEAD_SECONDS
from k3observe.exporters.experts.polled import CountsReader
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Rearrangement
from tests.exporters.experts.published import EXPERTS, LAYERS, LOCAL, RANKS, Engine, Reader, age


@pytest.mark.parametrize("weights", [[1.0] * 8, [8.0] + [1.0] * 7, [0.0, 0.0, *[1.0] * 6]])
def test_loads_are_the_columns_of_all_ranks_added(engine: Engine, reader: Reader, weights: list[float]) -> None:
    engine.weights = weights
    for _ in range(5):
        engine.interval()
        rank, expert = reader.look()
        assert isinstance(rank, ExpertLoads)
        assert isinstance(expert, ExpertLoads)
        assert rank.counts == engine.by_rank()
        assert sum(expert.counts, ()) == tuple(engine.sent)
        assert (rank.ranks_seen, rank.ranks_expected) == (RANKS, RANKS)
    assert reader.look() == []


def test_a_file_of_the_same_counts_gives_the_same_loads_of_ranks_and_experts(engine: Engine, reader: Reader) -> None:
    engine.interval()
    rows = [engine.sent[start : start + EXPERTS] for start in range(0, len(engine.sent), EXPERTS)]
    document = {"version": 1, "kind": "window", "time": time.time(), "scope": "expert", "ranks": RANKS, "counts": rows}
    told = {event.scope: event.counts for event in CountsReader()(json.dumps(document).encode(), time.time())
            if isinstance(event, ExpertLoads)}
    assert told == {event.scope: event.counts for event in reader.look() if isinstance(event, ExpertLoads)}
    assert set(told) == {"rank", "expert"}


def test_moving_loads_give_the_balance_of_the_interval_they_moved_in(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    for hot in range(RANKS):
        engine.weights = [5.0 if i // LOCAL == hot else 1.0 for i in range(EXPERTS)]
        engine.interval()
        [loads] = reader.ranks()
        found = balance(loads.counts)
        assert found == balance(engine.by_rank())
        assert found is not None
        assert found.worst < 0.6
        assert all(max(row) == row[hot] for row in loads.counts)


def test_intervals_that_were_not_read_are_not_lost(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    routed = [0] * (LAYERS * EXPERTS)
    for _ in range(7):
        engine.interval()
        routed = [a + b for a, b in zip(routed, engine.sent, strict=True)]
    rank, expert = reader.look()
    assert isinstance(rank, ExpertLoads)
    assert rank.counts == engine.by_rank(routed)
    assert isinstance(expert, ExpertLoads)
    assert sum(expert.counts, ()) == tuple(routed)


def test_a_late_rank_is_waited_for_and_then_all_is_counted(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    engine.interval(write=range(3))
    before = engine.sent
    assert reader.look() == []
    engine.interval()
    [loads] = reader.ranks()
    assert loads.counts == engine.by_rank([a + b for a, b in zip(before, engine.sent, strict=True)])


def test_a_living_rank_that_never_catches_up_is_left_out_after_a_while(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.interval()
    reader.look()
    engine.interval(write=range(3))
    assert reader.look() == []
    later = time.time() + 8
    monkeypatch.setattr(time, "time", lambda: later)
    [loads] = reader.ranks()
    assert (loads.ranks_seen, loads.ranks_expected) == (3, RANKS)


def test_a_dead_rank_is_not_waited_for_and_is_seen_as_missing(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    age(engine.file(3), DEAD_SECONDS + 1)
    engine.interval(range(3))
    assert reader.ranks() == []  # a rank may be about to write its first file
    time.sleep(1.05)
    [loads] = reader.ranks()
    assert loads.counts == engine.by_rank()
    assert (loads.ranks_seen, loads.ranks_expected) == (3, RANKS)
    assert balance(loads.counts) is not None


def test_an_interval_in_which_the_engine_did_not_count_is_no_load(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    engine.recorded = 0
    engine.interval()
    assert reader.look() == []
    assert reader.value("k3_source_up") == 1
    engine.recorded = 40
    engine.interval()
    [loads] = reader.ranks()
    assert loads.counts == engine.by_rank()


def test_replicas_are_added_to_their_logical_expert_and_empty_slots_left_out(engine: Engine, reader: Reader) -> None:
    engine.mapping = [0, 1, 2, 3, 4, 5, 0, -1] * LAYERS
    engine.interval()
    _, expert = reader.look()
    assert isinstance(expert, ExpertLoads)
    first = engine.sent[:EXPERTS]
    assert expert.counts[0] == (first[0] + first[6], *first[1:6])


def test_while_experts_move_ranks_have_loads_and_experts_have_none(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    engine.settled, engine.map_number = False, 1
    engine.interval()
    assert [event.scope for event in reader.look() if isinstance(event, ExpertLoads)] == ["rank"]


def test_after_a_move_that_was_not_read_experts_are_counted_from_the_newest_interval(
    engine: Engine, reader: Reader
) -> None:
    engine.interval()
    reader.look()
    engine.interval()
    engine.mapping, engine.map_number = list(reversed(range(EXPERTS))) * LAYERS, 2
    engine.interval()
    _, expert = reader.look()
    assert isinstance(expert, ExpertLoads)
    assert expert.counts[0] == tuple(reversed(engine.sent[:EXPERTS]))


def test_rearrangements_are_told_once_with_the_longest_duration_of_the_ranks(engine: Engine, reader: Reader) -> None:
    engine.events = (Rearrangement(1, 1.0, 0.5),)
    engine.interval()
    assert not [event for event in reader.look() if isinstance(event, Rebalance)]  # it was before we looked
    engine.events = (*engine.events, Rearrangement(2, 2.0, None))
    engine.interval()
    assert not [event for event in reader.look() if isinstance(event, Rebalance)]
    engine.events = (Rearrangement(1, 1.0, 0.5), Rearrangement(2, 2.0, 0.25))
    engine.interval(write=range(3))
    engine.write(3, [0] * LAYERS * EXPERTS, rearrangements=(Rearrangement(2, 2.0, 0.75),))
    events = [event for event in reader.look() if isinstance(event, Rebalance)]
    assert events == [Rebalance("moe", 2.0, 0.75)]
    engine.interval()
    assert not [event for event in reader.look() if isinstance(event, Rebalance)]


def test_pipeline_stages_are_layers_of_their_own(tmp_path: Path, reader: Reader) -> None:
    stages = [Engine(tmp_path, stage=stage, stages=2) for stage in range(2)]
    for stage in stages:
        stage.interval()
    loads = reader.ranks()
    assert [part.layers for part in loads] == [(0, 1, 2), (1000, 1001, 1002)]
    assert [part.counts for part in loads] == [stage.by_rank() for stage in stages]


def test_models_of_several_engines_are_told_apart_while_both_serve(tmp_path: Path, reader: Reader) -> None:
    one, other, third = Engine(tmp_path, "one"), Engine(tmp_path, "other"), Engine(tmp_path, "x", model="draft")
    for engine in (one, other, third):
        engine.interval()
    reader.look()
    for engine in (one, other, third):
        engine.interval()
    loads = {part.model: part.counts for part in reader.ranks()}
    assert loads == {
        "moe (one)": one.by_rank(), "moe (other)": other.by_rank(), "draft": third.by_rank()}


def test_a_restarted_engine_keeps_the_name_of_its_model(tmp_path: Path, reader: Reader) -> None:
    old, new = Engine(tmp_path, "old"), Engine(tmp_path, "new")
    for engine in (old, old, new, new, new):
        engine.interval()
        assert [part.model for part in reader.ranks()] == ["moe"]


def test_a_restarted_rank_is_not_compared_with_its_old_totals(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    engine.totals[2] = [0] * (LAYERS * EXPERTS)
    engine.sequence[2] = 0
    engine.interval(write=(0, 1, 3))
    counts = [10] * (LAYERS * EXPERTS)
    engine.write(2, counts, run="again")
    [loads] = reader.ranks()
    assert min(min(row) for row in loads.counts) > 0
    assert loads.ranks_seen == RANKS


def test_a_rank_with_another_shape_is_named(
    engine: Engine, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    engine.interval(write=range(3))
    small = ModelCounts(
        model="moe", rows=1, columns=RANKS, steps=1, recorded=1, total_steps=1, total_recorded=1,
        counts=array("i", [1] * RANKS), totals=array("q", [1] * RANKS))
    engine.write(3, [0] * LAYERS * EXPERTS, models=(small,))
    [loads] = reader.ranks()
    assert len(loads.counts) == LAYERS
    assert "rank 3 has 1 x 4 counts of 'moe', others 3 x 8" in caplog.text
