from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.experts import counts
from k3observe.exporters.experts.balance import balance
from k3observe.exporters.experts.counts import CountsError
from k3observe.exporters.experts.files import read_file
from k3observe.exporters.experts.heatmap import HeatMapReader
from k3observe.exporters.experts.loads import BalanceReading, ExpertLoads
from k3observe.exporters.experts.polled import CountsReader

NOW = 1_000_000.0


def document(**fields: Any) -> bytes:
    return json.dumps({"version": 1, "scope": "rank", "counts": [[1, 2], [3, 4]], **fields}).encode()


def heat_map(rows: list[list[int]], colon: str = ":") -> bytes:
    """Write the exposition as SGLang does: cumulative over ranks, layers by label."""
    name, lines = f"sglang{colon}eplb_gpu_physical_count", []
    for layer, row in enumerate(rows):
        below = 0
        for rank, load in enumerate(row):
            below += load
            lines.append(f'{name}_bucket{{layer="{layer}",le="{rank}.0"}} {below}.0')
        lines.append(f'{name}_bucket{{layer="{layer}",le="+Inf"}} {below}.0')
        lines.append(f'{name}_count{{layer="{layer}"}} {below}.0')
    return ("\n".join([f"# TYPE {name} histogram", *lines]) + "\n").encode()


tables = st.integers(1, 8).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, 10**6), min_size=width, max_size=width), min_size=1, max_size=4))


@given(tables, tables)
def test_file_and_heat_map_agree_exactly_on_the_same_counts(before: list[list[int]], increase: list[list[int]]) -> None:
    before = [[0] * len(increase[0]) for _ in increase] if len(before) != len(increase) else before
    before = [(row + [0] * 8)[: len(increase[0])] for row in before]
    after = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(before, increase, strict=True)]
    file, engine = CountsReader("K3"), HeatMapReader("K3")
    assert file(document(counts=before), NOW) == engine(heat_map(before), NOW) == []
    (one,), (other,) = file(document(counts=after), NOW + 9), engine(heat_map(after, "_"), NOW + 9)
    assert isinstance(one, ExpertLoads)
    assert isinstance(other, ExpertLoads)
    assert one.counts == other.counts == tuple(map(tuple, increase))
    assert balance(one.counts) == balance(other.counts)


@pytest.mark.parametrize("source", [CountsReader("K3"), HeatMapReader("K3")])
def test_after_a_restart_of_the_engine_the_new_counts_are_the_increase(source: Any) -> None:
    for rows, expected in (([[9, 9]], None), ([[10, 12]], ((1, 3),)), ([[2, 20]], ((2, 20),))):
        text = heat_map(rows) if isinstance(source, HeatMapReader) else document(counts=rows)
        events = source(text, NOW)
        assert [event.counts for event in events] == ([expected] if expected else [])


def test_a_change_of_shape_only_sets_the_mark() -> None:
    source = CountsReader()
    source(document(counts=[[1, 1]]), NOW)
    assert source(document(counts=[[5, 5, 5]]), NOW) == []


def test_a_window_is_counted_once() -> None:
    source = CountsReader()
    assert len(source(document(kind="window", time=5), NOW)) == 1
    assert source(document(kind="window", time=5), NOW) == []
    assert source(document(kind="window", time=4), NOW) == []
    assert len(source(document(kind="window", time=6), NOW)) == 1


def test_experts_in_blocks_give_the_loads_of_ranks_too() -> None:
    source = CountsReader()
    experts, ranks = source(document(kind="window", time=5, scope="expert", ranks=2, counts=[[1, 2, 3, 4]]), NOW)
    assert isinstance(experts, ExpertLoads)
    assert isinstance(ranks, ExpertLoads)
    assert (experts.scope, experts.counts) == ("expert", ((1, 2, 3, 4),))
    assert (ranks.scope, ranks.counts, ranks.ranks_expected) == ("rank", ((3, 7),), 2)


def test_what_a_sidecar_serves_another_reads_back() -> None:
    loads = ExpertLoads("K3", "rank", ((1, 2), (3, 4)), 300.0, NOW, "decode", (5, 6), (0, 9), 1, 2)
    read = counts.parse(counts.render("me", NOW, [loads]), now=0)
    assert (read.instance, read.kind, read.time, read.loads) == ("me", "window", NOW, (loads,))


@pytest.mark.parametrize(("text", "message"), [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 10_000, "nested too deeply"),
    (b'{"version":' + b"9" * 5000 + b"}", "not JSON"),
    (b"[]", "must be an object, is a list"),
    (b"{}", "version: must be 1, is null"),
    (document(kind="daily"), "kind: must be window or cumulative, is 'daily'"),
    (document(kind="window"), "time: a window needs"),
    (document(time="now"), "time: must be a number of seconds, is 'now'"),
    (document(time=float("nan")), "time: must be a number"),
    (document(time=float("inf")), "time: must be a number"),
    (document(time=True), "time: must be a number"),
    (document(scope="gpu"), "scope: must be rank or expert, is 'gpu'"),
    (document(scope=[1]), "scope: must be rank or expert, is a list"),
    (document(phase={}), "phase: must be one of"),
    (document(counts=None), "counts: must be a list of layers"),
    (document(counts=[1, 2]), "counts: must be a list of layers"),
    (document(counts=[[1, 2], [3]]), r"counts\[1\]: 1 counts, layer 0 has 2"),
    (document(counts=[[1, -2]]), r"counts\[0\]: counts must be from 0 to"),
    (document(counts=[[1, 2**60]]), r"counts\[0\]: counts must be from 0 to"),
    (document(counts=[[1, 2.5]]), r"counts\[0\]: 2.5 is no whole number"),
    (document(counts=[[True, 2]]), r"counts\[0\]: True is no whole number"),
    (document(counts=[[1, [[]]]]), r"counts\[0\]: a list is no whole number"),
    (document(counts=[[1]] * 2000), "2000 x 1: at most 1024"),
    (document(counts=[[1] * 2000]), "1 x 2000: at most 1024 x 1024"),
    (document(layers=[1]), "layers: must name each of the 2 once"),
    (document(columns=[1, 1]), "columns: must name each of the 2 once"),
    (document(columns=[0, "a"]), "columns: must be a list of whole numbers"),
    (document(ranks_seen=0), "ranks_seen: must be a number of ranks"),
    (document(scope="expert", counts=[[1, 2, 3]], ranks=2), "3 experts do not divide into 2 ranks"),
    (document(model="x" * 300), "model: must be a printable text"),
    (document(model="\ud800"), "model: must be a printable text"),
    (document(model="a\nb"), "model: must be a printable text"),
    (document(loads={}), "loads: must be a list of at most 16"),
    (document(loads=[{}] * 17), "loads: must be a list of at most 16"),
    (document(loads=[7]), r"loads\[0\]: must be an object, is a number"),
    (document(loads=[{"scope": "rank", "counts": [[0.5]]}]), r"loads\[0\].counts\[0\]: 0.5 is no whole number"),
])
def test_hostile_json_is_refused_with_its_field(text: bytes, message: str) -> None:
    with pytest.raises(CountsError, match=message):
        counts.parse(text, now=NOW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)


@given(st.dictionaries(
    st.sampled_from(["version", "kind", "time", "loads", "scope", "phase", "counts", "layers", "columns", "ranks",
                     "ranks_seen", "seconds", "model", "instance"]), json_values))
def test_any_json_is_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        counts.parse(document(**fields), now=NOW)
    except CountsError:
        return


def test_a_file_is_read_only_when_it_is_a_file_of_bounded_size(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, 1 << 40)
    for path, message in ((pipe, "not a regular file"), (large, "at most"), (tmp_path / "none", "No such file")):
        with pytest.raises(OSError, match=message):
            read_file(path, 1 << 20)


def test_the_heat_map_of_the_sample_is_read_by_differences_of_bounds_and_scrapes(shared: Path) -> None:
    text = (shared / "samples/engines/sglang-0.5.23-dpattn8x2-eplb.prom").read_bytes()
    name = b'sglang:eplb_gpu_physical_count_bucket{layer="0",le="'
    zero = b"\n".join(
        line.rsplit(b" ", 1)[0] + b" 0.0" if line.startswith(name[:40]) else line for line in text.split(b"\n"))
    source = HeatMapReader()
    assert source(zero, NOW) == []
    (event,) = source(text, NOW + 10)
    assert isinstance(event, ExpertLoads)
    assert event.model == "moonshotai/Kimi-K3"
    assert len(event.counts) == 60
    assert event.counts[0] == (3762, 3898, 3817, 3754, 4365, 3639, 3450, 4035)
    assert {sum(row) for row in event.counts} == {30720}
    assert (event.ranks_seen, event.ranks_expected) == (8, 8)


def test_the_summary_of_passes_gives_the_balance_of_phases_without_idle_ones() -> None:
    def scrape(*modes: tuple[str, float, int]) -> bytes:
        return "".join(
            f'sglang:eplb_balancedness_{part}{{forward_mode="{mode}",model_name="K3"}} {value}\n'
            for mode, total, count in modes for part, value in (("sum", total), ("count", count))).encode()

    source = HeatMapReader(ranks=8)
    assert source(scrape(("decode", 5, 10), ("idle", 3, 3)), NOW) == []
    events = source(scrape(("decode", 11, 20), ("extend", 1.5, 2), ("idle", 9, 9)), NOW)
    assert [(e.phase, e.value, e.weight) for e in events if isinstance(e, BalanceReading)] == [
        ("decode", 0.6, 10), ("prefill", 0.75, 2)]
    assert source(scrape(("decode", 11, 20), ("extend", 1.5, 2)), NOW) == []


@pytest.mark.parametrize(("text", "message"), [
    (b"", "no sglang:eplb_"),
    (b"vllm:num_requests_running 1\n", "no sglang:eplb_"),
    (heat_map([[1, 2]])[:-60], "cut short or broken"),
    (heat_map([[1, 2]]).replace(b'le="1.0"', b'le="1.5"'), "bounds must be the ranks"),
    (heat_map([[1, 2]]).replace(b'le="1.0"', b'le="x"'), "could not convert"),
    (heat_map([[1, 2]]).replace(b"} 1.0", b"} NaN"), "is no count"),
    (heat_map([[1, 2]]).replace(b"} 1.0", b"} 9.0"), "go down"),
    (heat_map([[1, 2], [1, 2]]).replace(b'layer="1",le="1.0"', b'layer="1",le="2.0"'), "other bounds"),
    (heat_map([[1] * 1025]), "bounds must be the ranks"),
])
def test_a_heat_map_of_another_shape_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HeatMapReader()(text, NOW)


@pytest.mark.parametrize("value", [b"[]," * (5 << 20), b"10," * (3 << 20), b"{}," * (5 << 20)])
def test_text_that_would_grow_in_memory_is_refused_before_it_is_parsed(value: bytes) -> None:
    text = b'{"version":1,"counts":[' + value + b"0]}"
    start = time.monotonic()
    tracemalloc.start()
    with pytest.raises(CountsError, match="too many values"):
        counts.parse(text, now=NOW)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert time.monotonic() - start < 2


def test_a_window_of_the_future_is_refused_and_one_after_the_clock_was_put_back_is_counted_once() -> None:
    reader = CountsReader()

    def window(at: float) -> bytes:
        return json.dumps({"version": 1, "kind": "window", "time": at, "scope": "rank", "counts": [[1, 2]]}).encode()

    with pytest.raises(CountsError, match="in the future"):
        reader(window(NOW + 1e6), NOW)
    assert len(reader(window(NOW), NOW)) == 1
    assert len(reader(window(NOW - 3600), NOW - 3600)) == 1
    assert reader(window(NOW - 3600), NOW - 3599) == []
