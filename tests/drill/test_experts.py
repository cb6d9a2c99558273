"""The simulated experts: what their files say, and what a real sidecar makes of it."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

import pytest

from k3observe.drill.experts import SLOTS, Experts, arranged
from k3observe.drill.servers import wait_until
from k3observe.drill.stack import sidecar
from k3observe.exporters.vllm_plugin.fileformat import ModelCounts, decode


def published(folder: Path, rank: int = 0) -> ModelCounts:
    return decode((folder / f"k3experts-engine-0-pp000-ep{rank:05d}.bin").read_bytes()).models[0]


def shares(counts: ModelCounts, layer: int) -> list[float]:
    """Load of each rank over the mean."""
    row = counts.counts[layer * counts.columns : (layer + 1) * counts.columns]
    loads = [sum(row[start : start + SLOTS]) for start in range(0, len(row), SLOTS)]
    return [load * len(loads) / sum(loads) for load in loads]


def test_a_skew_gives_one_rank_its_factor_in_every_layer_and_a_rebalance_evens_it(tmp_path: Path) -> None:
    experts = Experts(tmp_path, "kimi-k3", layers=6)
    experts.skew(hot=3, factor=2.6)
    experts.publish(time.time(), 1)
    for layer in range(6):
        loads = shares(published(tmp_path), layer)
        assert max(range(8), key=loads.__getitem__) == 3
        assert loads[3] == pytest.approx(2.6, rel=0.03)
    experts.rebalance(time.time())
    experts.publish(time.time(), 1)
    moved = published(tmp_path)
    assert not moved.settled, "experts moved within this interval"
    assert moved.map_number == 1
    assert all(max(shares(moved, layer)) < 1.1 for layer in range(6))
    experts.publish(time.time(), 1)
    assert published(tmp_path).settled


def test_a_layer_can_be_uneven_alone(tmp_path: Path) -> None:
    experts = Experts(tmp_path, "kimi-k3", layers=6)
    experts.favour(4)
    experts.publish(time.time(), 1)
    peaks = [max(shares(published(tmp_path), layer)) for layer in range(6)]
    assert [peak > 1.5 for peak in peaks] == [layer == 4 for layer in range(6)]


def test_redundant_copies_go_to_the_experts_with_most_tokens() -> None:
    placed = arranged([9.0] + [1.0] * 14, ranks=2)
    assert placed.count(0) == 2
    assert {placed[:SLOTS].count(0), placed[SLOTS:].count(0)} == {1}


@pytest.mark.long
def test_the_real_sidecar_names_the_hottest_experts_and_counts_the_rebalance(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    experts = Experts(files, "kimi-k3", layers=6)
    experts.skew(hot=3, factor=2.6)
    popular = set(arranged([1.0] * 56, 8)[3 * SLOTS : 4 * SLOTS])
    flags = ["--collect", "experts", "--experts.source", "plugin", "--experts.plugin-dir", str(files),
             "--experts.interval", "1", "--experts.window", "4s", "--experts.top", "3"]  # fmt: skip
    with sidecar(tmp_path, flags, {}) as address:

        def value(pattern: str) -> list[re.Match[str]]:
            experts.publish(time.time(), 0.5)
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                return list(re.finditer(pattern, answer.read().decode()))

        def balance() -> float:
            return float(value(r'k3_expert_balance_ratio\{.*scope="rank".*\} (\S+)')[0][1])

        wait_until(lambda: balance() < 0.5, "the skew", 15, every=0.5)
        hottest = value(r'k3_expert_hottest_load_ratio\{.*expert="(\d+)".*\} (\S+)')
        assert len(hottest) == 3
        assert {int(match[1]) for match in hottest} <= popular
        experts.rebalance(time.time())
        wait_until(lambda: balance() > 0.9, "the rebalance", 15, every=0.5)
        assert value(r"k3_expert_rebalances_total\{.*\} 1(\.0)?\b")
        assert value(r"k3_expert_rebalance_seconds\{.*\} 2\.1")
