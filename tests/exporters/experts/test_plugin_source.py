"""The source as a whole: what it says of the directory, and what the sidecar serves of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts.balance import balance
from k3observe.exporters.experts.loads import Event, ExpertLoads
from k3observe.exporters.experts.plugin import PluginSource
from k3observe.exporters.experts.plugin_files import DEAD_SECONDS
from tests.exporters.experts.published import EXPERTS, LAYERS, LOCAL, RANKS, Engine, Reader, age


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
