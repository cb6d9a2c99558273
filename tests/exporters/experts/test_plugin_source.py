from __future__ import annotations

import logging
import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry

from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.experts import plugin_files
from k3observe.exporters.experts.balance import balance
from k3observe.exporters.experts.loads import Event, ExpertLoads, Rebalance
from k3observe.exporters.experts.plugin import PluginSource
from k3observe.exporters.experts.plugin_files import DEAD_SECONDS
from k3observe.exporters.vllm_plugin import fileformat
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, Publication, Rearrangement

LAYERS, RANKS, LOCAL = 3, 4, 2
EXPERTS = RANKS * LOCAL


class Engine:
    """An engine of some ranks; each rank's router sends to all of them, and ``sent`` is the truth of an interval."""

    def __init__(self, folder: Path, name: str = "e", *, model: str = "moe", stage: int = 0, stages: int = 1) -> None:
        self.folder, self.name, self.model, self.stage, self.stages = folder, name, model, stage, stages
        self.random = random.Random(name)
        self.totals = [[0] * (LAYERS * EXPERTS) for _ in range(RANKS)]
        self.sequence = [0] * RANKS
        self.steps = 0
        self.sent = [0] * (LAYERS * EXPERTS)
        self.mapping: list[int] = list(range(EXPERTS)) * LAYERS
        self.map_number = 0
        self.settled = True
        self.recorded = 100
        self.total_recorded = 0
        self.events: tuple[Rearrangement, ...] = ()
        self.weights = [1.0] * EXPERTS

    def interval(self, ranks: Sequence[int] = range(RANKS), *, write: Sequence[int] | None = None) -> None:
        """Let ``ranks`` route for a while and publish, those in ``write`` into a file."""
        self.steps += 100
        self.total_recorded += self.recorded
        self.sent = [0] * (LAYERS * EXPERTS)
        for rank in ranks:
            counts = [
                int(self.random.randint(50, 150) * self.weights[i % EXPERTS]) if self.recorded else 0
                for i in range(LAYERS * EXPERTS)]
            self.sent = [a + b for a, b in zip(self.sent, counts, strict=True)]
            self.totals[rank] = [a + b for a, b in zip(self.totals[rank], counts, strict=True)]
            self.sequence[rank] += 1
            if write is None or rank in write:
                self.write(rank, counts)

    def write(self, rank: int, counts: Sequence[int], **changes: Any) -> Path:
        model = ModelCounts(
            model=self.model, rows=LAYERS, columns=EXPERTS, steps=100, recorded=self.recorded,
            total_steps=self.steps, total_recorded=self.total_recorded, counts=array("i", counts),
            totals=array("q", self.totals[rank]), logical=array("h", self.mapping), settled=self.settled,
            map_number=self.map_number)
        values: dict[str, Any] = {
            "engine": "vllm", "engine_version": "0.33.0", "instance": self.name, "run": f"{self.name}{rank}",
            "pp_rank": self.stage, "pp_size": self.stages, "ep_rank": rank, "ep_size": RANKS, "detail": "expert",
            "sequence": self.sequence[rank], "cycle": 0, "step": self.steps, "time": time.time(), "seconds": 0.5,
            "dropped": 0, "rearrangements": self.events, "models": (model,)}
        return fileformat.write(self.folder, Publication(**{**values, **changes}))

    def file(self, rank: int) -> Path:
        return self.folder / fileformat.file_name(self.name, self.stage, rank)

    def by_rank(self, counts: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
        counts = self.sent if counts is None else counts
        rows = [counts[i : i + EXPERTS] for i in range(0, len(counts), EXPERTS)]
        return tuple(tuple(sum(row[r * LOCAL : (r + 1) * LOCAL]) for r in range(RANKS)) for row in rows)


class Reader:
    """The source, looked at by hand."""

    def __init__(self, folder: Path) -> None:
        self.source = PluginSource(folder, 1.0)
        self.status = SourceStatus("experts", "plugin", PluginSource.reasons)

    def look(self) -> list[Event]:
        events: list[Event] = []
        self.source.look(events.append, self.status, logging.getLogger("experts"))
        return events

    def ranks(self) -> list[ExpertLoads]:
        return [event for event in self.look() if isinstance(event, ExpertLoads) and event.scope == "rank"]

    def value(self, name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        status = self.status

        class Families:
            def collect(self) -> Any:
                return source_families([status])

        registry.register(Families())  # type: ignore[arg-type]
        return registry.get_sample_value(name, {"collector": "experts", "source": "plugin", **labels})


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


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


def test_an_idle_engine_is_neither_stale_nor_a_load_of_zero(engine: Engine, reader: Reader) -> None:
    engine.interval()
    reader.look()
    for rank in range(RANKS):
        os.utime(engine.file(rank))  # the writers' heartbeat
    assert reader.look() == []
    assert reader.value("k3_source_up") == 1
    assert reader.value("k3_source_errors_total", reason="stale") == 0


def test_an_engine_that_ended_is_stale_and_its_last_counts_are_not_news(engine: Engine, reader: Reader) -> None:
    engine.interval()
    for rank in range(RANKS):
        age(engine.file(rank), DEAD_SECONDS + 1)
    assert reader.look() == []
    assert reader.value("k3_source_up") == 0
    assert reader.value("k3_source_errors_total", reason="stale") == 1


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


def test_hostile_files_are_named_and_the_others_are_read(
    engine: Engine, reader: Reader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine.interval(range(3))
    os.mkfifo(engine.file(3))
    (tmp_path / fileformat.file_name("link", 0, 0)).symlink_to("/etc/passwd")
    with (tmp_path / fileformat.file_name("huge", 0, 0)).open("wb") as file:
        file.truncate(fileformat.MAX_BYTES + 1)
    (tmp_path / fileformat.file_name("torn", 0, 0)).write_bytes(engine.file(0).read_bytes()[:-1])
    (tmp_path / fileformat.file_name("liar", 0, 0)).write_bytes(engine.file(0).read_bytes())
    (tmp_path / "notes.txt").write_text("not a file of counts")
    time.sleep(1.05)
    [loads] = reader.ranks()
    assert loads.counts == engine.by_rank()
    said = "\n".join(record.getMessage() for record in caplog.records)
    for words in ("not a regular file", "link", f"at most {fileformat.MAX_BYTES} are read",
                  "do not match the lengths", "the name is not that of the rank in it"):
        assert words in said
    assert reader.value("k3_source_errors_total", reason="invalid") == 1
    reader.look()
    assert reader.value("k3_source_errors_total", reason="invalid") == 1


def test_a_file_from_the_future_is_refused(engine: Engine, reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    engine.interval()
    reader.look()
    engine.sequence[0] += 1
    engine.write(0, [1] * LAYERS * EXPERTS, time=time.time() + 3600)
    assert reader.look() == []
    assert "its time lies in the future" in caplog.text
    engine.interval()
    assert len(reader.ranks()) == 1


def test_files_that_are_too_much_together_are_not_read(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.interval()
    monkeypatch.setattr(plugin_files, "MAX_TOTAL_BYTES", engine.file(0).stat().st_size)
    reader.look()
    assert f"{engine.file(1).name} and those after it are not read" in caplog.text


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


@pytest.mark.parametrize("missing", [False, True])
def test_a_directory_without_files_says_what_to_look_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: bool
) -> None:
    reader = Reader(tmp_path / "none" if missing else tmp_path)
    assert reader.look() == []
    assert reader.look() == []
    assert reader.value("k3_source_up") == 0
    assert len(caplog.records) == 1
    assert ("No such file" if missing else "K3OBSERVE_EXPERTS_DIR") in caplog.text


def test_files_that_did_not_change_are_not_read_again(
    engine: Engine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.interval()
    reader.look()
    monkeypatch.setattr(fileformat, "decode", lambda _: pytest.fail("it was read again"))
    assert reader.look() == []


def test_the_thread_follows_a_directory_that_is_written_all_the_time(engine: Engine, tmp_path: Path) -> None:
    events: list[Event] = []
    status = SourceStatus("experts", "plugin", PluginSource.reasons)
    engine.interval()
    reading = PluginSource(tmp_path, 0.001)
    reading.start(events.append, status, logging.getLogger("experts"))
    truth = [[0] * RANKS for _ in range(LAYERS)]

    def total() -> list[list[int]]:
        ranks = [event.counts for event in list(events) if isinstance(event, ExpertLoads) and event.scope == "rank"]
        return [[sum(column) for column in zip(*rows, strict=True)] for rows in zip(*ranks, strict=True)]

    def add() -> None:
        for row, counts in zip(truth, engine.by_rank(), strict=True):
            row[:] = [a + b for a, b in zip(row, counts, strict=True)]

    add()
    deadline = time.monotonic() + 5
    while total() != truth and time.monotonic() < deadline:
        time.sleep(0.005)
    for _ in range(50):
        engine.interval()
        add()
    while total() != truth and time.monotonic() < deadline:
        time.sleep(0.005)
    assert total() == truth
    reading.stop()
    for thread in threading.enumerate():
        if thread.name == "experts-plugin":
            thread.join(5)
            assert not thread.is_alive()


def test_a_skew_in_the_files_is_the_variance_that_the_sidecar_serves(
    engine: Engine, tmp_path: Path, sidecar: Callable[..., Any]
) -> None:
    serving = sidecar("--experts.source=plugin", f"--experts.plugin-dir={tmp_path}", "--experts.window=5s")
    engine.interval()
    labels = {"model_name": "moe", "scope": "rank", "formula": "mean_of_layers"}
    found = balance(engine.by_rank())
    assert found is not None
    serving.expect("k3_expert_load_variance", found.variance, **labels)
    assert found.variance < 0.05
    engine.weights = [9.0] * LOCAL + [1.0] * (EXPERTS - LOCAL)
    deadline = time.monotonic() + 15
    while (serving.value("k3_expert_load_variance", **labels) or 0) < 0.3:
        assert time.monotonic() < deadline, serving.log.read_text()
        engine.interval()
        time.sleep(0.1)
    assert serving.value("k3_expert_rank_load_ratio", rank="0") > 2
    assert serving.value("k3_expert_ranks_seen") == serving.value("k3_expert_ranks_expected") == RANKS
    assert serving.value("k3_source_up", source="plugin") == 1


def test_two_nodes_of_one_group_give_the_balance_of_all_its_ranks(
    tmp_path: Path, sidecar: Callable[..., Any]
) -> None:
    folders = [tmp_path / "node-0", tmp_path / "node-1"]
    for folder in folders:
        folder.mkdir()
    nodes = [Engine(folder, f"n{index}") for index, folder in enumerate(folders)]
    nodes[0].weights, nodes[1].weights = [4.0] * LOCAL + [1.0] * 6, [1.0] * 6 + [4.0] * LOCAL
    for node, ranks in zip(nodes, ((0, 1), (2, 3)), strict=True):
        node.interval(ranks)
    flags = [("--experts.source=plugin", f"--experts.plugin-dir={folder}") for folder in folders]
    other = sidecar(*flags[1], "--experts.window-only")
    serving = sidecar(*flags[0], f"--experts.peer={other.url}")
    truth = balance([
        [a + b for a, b in zip(*rows, strict=True)] for rows in zip(*(n.by_rank() for n in nodes), strict=True)])
    assert truth is not None
    serving.expect("k3_expert_ranks_seen", RANKS)
    serving.expect("k3_expert_balance_ratio", truth.balance, scope="rank", formula="mean_of_layers")
    serving.expect("k3_expert_load_variance", truth.variance, scope="rank", formula="mean_of_layers")
