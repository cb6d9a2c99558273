from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.experts.formats import ENGINES, Engine, LineReader, Problem, marked_lines
from k3observe.exporters.experts.loads import BalanceReading, Rebalance

NOW = 1_000_000.0
VLLM = (
    "EPLB step: 2250 for model moonshotai/Kimi-K3: avg_tokens=61440.00, max_tokens=66941, balancedness=0.9178, "
    "steps until the next rearrangement: 750")
SGLANG = (
    "[Expert Balancedness] forward_pass_id=11 current_pass_balancedness={value:.03f} "
    "last_10_average_balancedness=0.590  gpu_physical_count_sum={total}")
ASCEND = "[eplb/worker] Expert hotness imbalance, current: mean={:.3f} max={:.3f}, updated: mean=1.033 max=1.120"

SKIP = "[EPLB] Skip rearrange: imbalance 1.0812 -> 1.0790 (no material gain)"


def reader(version: str | None = "0.33.0", **others: Any) -> LineReader:
    return LineReader(version=version, **others)


def one(line: str, source: LineReader | None = None) -> BalanceReading:
    (event,) = (source or reader()).read(line, NOW)
    assert isinstance(event, BalanceReading)
    return event


layers_of_ranks = st.integers(2, 16).flatmap(
    lambda ranks: st.lists(st.lists(st.integers(0, 5000), min_size=ranks, max_size=ranks), min_size=1, max_size=8))


@given(layers_of_ranks.filter(lambda counts: any(map(any, counts))))
def test_vllms_line_gives_the_ratio_of_sums_it_was_printed_from(counts: list[list[int]]) -> None:
    average, largest = sum(sum(row) / len(row) for row in counts), sum(map(max, counts))
    line = (
        f"EPLB step: 5 for model K3: avg_tokens={average:.2f}, max_tokens={largest}, "
        f"balancedness={average / largest:.4f}, steps until the next rearrangement: -3")
    source = reader(layers=len(counts), ranks=len(counts[0]))
    if average < 0.005:
        assert list(source.read(line, NOW)) == []
        return
    event = one(line, source)
    assert event.formula == "ratio_of_sums"
    assert event.value == pytest.approx(average / largest, abs=5e-5)
    assert event.tokens == pytest.approx(sum(map(sum, counts)) / len(counts), rel=0.01, abs=0.2)
    assert event.rank_load == pytest.approx(average / len(counts), rel=0.01, abs=0.01)


@given(layers_of_ranks.filter(lambda counts: all(map(any, counts))))
def test_ascends_line_gives_the_reciprocal_of_the_mean_it_was_printed_from(counts: list[list[int]]) -> None:
    stretches = [max(row) * len(row) / sum(row) for row in counts]
    event = one(ASCEND.format(sum(stretches) / len(stretches), max(stretches)))
    assert event.formula == "reciprocal_of_mean"
    assert event.value == pytest.approx(len(stretches) / sum(stretches), abs=1e-3)
    assert event.worst == pytest.approx(1 / max(stretches), abs=1e-3)


@given(layers_of_ranks.filter(lambda counts: any(map(any, counts))))
def test_sglangs_line_gives_the_mean_over_layers_it_was_printed_from(counts: list[list[int]]) -> None:
    value = sum((sum(row) / len(row) + 1e-5) / (max(row) + 1e-5) for row in counts) / len(counts)
    total = sum(map(sum, counts))
    event = one(SGLANG.format(value=value, total=total), reader(layers=len(counts), ranks=len(counts[0])))
    assert event.formula == "mean_of_layers"
    assert event.value == pytest.approx(value, abs=5e-4)
    assert event.tokens == pytest.approx(total / len(counts))


def test_idle_passes_are_no_readings() -> None:
    idle = VLLM.replace("61440.00", "0.00").replace("66941", "0").replace("0.9178", "0.0000")
    assert list(reader().read(idle, NOW)) == []
    assert list(reader().read(SGLANG.format(value=1.0, total=0), NOW)) == []
    assert list(reader().read(ASCEND.format(0, 0), NOW)) == []
    assert one(SGLANG.format(value=1.0, total=64)).value == 1


@pytest.mark.parametrize(("line", "version"), [
    ("EPLB step: avg_tokens=20480.00, max_tokens=20992, balancedness=0.9756", "0.10.0"),
    ("EPLB step: 7 for model K2: avg_tokens=20480.00, max_tokens=20992, balancedness=0.9756", "0.12.0"),
    ("EPLB step: 7 for model K2: avg_tokens=20480.00, max_tokens=20992, balancedness=0.9756", None),
    (VLLM, "0.14.1"),
    (VLLM, "0.27.1"),
])
def test_vllm_before_0_28_gives_no_balance_and_says_so(line: str, version: str | None) -> None:
    (event,) = reader(version).read(line, NOW)
    assert isinstance(event, Problem)
    assert event.once
    assert "no balance" in event.text


@pytest.mark.parametrize("version", ["0.28.0", "v0.28.0rc1", "0.33.0", "1.0"])
def test_vllm_from_0_28_on_gives_a_balance(version: str) -> None:
    assert one(VLLM, reader(version)).value == 0.9178


def test_the_version_comes_from_the_log_where_no_flag_gives_it() -> None:
    source = reader(None)
    (event,) = source.read(VLLM, NOW)
    assert isinstance(event, Problem)
    assert "--experts.engine-version" in event.text
    banner = "(EngineCore_DP0 pid=9) INFO Initializing a V1 LLM engine (v0.33.0) with config: model='x'"
    assert list(source.read(banner, NOW)) == []
    assert one(VLLM, source).value == 0.9178


@pytest.mark.parametrize("line", [
    VLLM,
    f"(Worker_DP0_TP0_EP0 pid=4711) INFO 11-02 10:15:01 [eplb_state.py:634] {VLLM}\r",
    f"\x1b[0;36m(Worker pid=1)\x1b[0;0m INFO {VLLM}".replace("avg", "\x1b[1mavg").replace("max_", "\x1b[0mmax_"),
    f"2026-11-02T10:15:01.123456789Z stderr F INFO {VLLM}",
    f"k3-0 k3 {VLLM}",
    json.dumps({"level": "INFO", "message": VLLM}),
    json.dumps({"log": f"\x1b[36mINFO\x1b[0m {VLLM}\n", "stream": "stderr"}),
    json.dumps({"log": json.dumps({"msg": VLLM}), "time": "2026"}),
    json.dumps({"a": {"b": {"text": VLLM}}}).replace("/", "\\/"),
    "2026-11-02T10:15:01Z stdout F " + json.dumps({"message": VLLM, "n": 1}),
    '{"broken": ' + VLLM,
])
def test_any_prefix_colour_or_json_envelope_is_read_through(line: str) -> None:
    event = one(line)
    assert (event.model, event.value) == ("moonshotai/Kimi-K3", 0.9178)


def test_the_samples_give_what_their_engines_meant(shared: Path) -> None:
    def events(name: str, version: str | None) -> list[Any]:
        return list(reader(version, layers=60, ranks=8).read_block((shared / "samples/logs" / name).read_bytes(), NOW))

    vllm = events("vllm-0.33-eplb.log", "0.33.0")
    assert [event.value for event in vllm] == [0.9178, 0.6250, 0.2, 0.9766]  # the rearrangement was called off
    assert [event.rank_load < 100 for event in vllm] == [False, False, True, False]
    assert events("vllm-0.10-nixl-idle.log", "0.10.0") == []
    (old,) = events("vllm-0.12-eplb.log", "0.12.0")
    assert isinstance(old, Problem)
    assert [event.value for event in events("sglang-0.5.log", None)] == [0.59, 0.41, 0.414]
    balance, crash = events("vllm-ascend-0.23.log", None)
    assert (balance.value, balance.worst) == (pytest.approx(1 / 1.412), pytest.approx(1 / 3.870))
    assert crash.reason == "eplb_crashed"


def test_the_older_wording_of_ascend_is_read_too() -> None:
    line = "[Expert Hotness] Current: mean=1.250, max=2.000, Updated: mean=1.033, max=1.120"
    assert (one(line).value, one(line).worst) == (0.8, 0.5)


def test_another_engines_lines_are_passed_over_where_the_engine_is_told() -> None:
    assert list(reader(engine="sglang").read(VLLM, NOW)) == []
    assert list(reader(engine="vllm").read(SGLANG.format(value=0.5, total=9), NOW)) == []


def test_later_ascend_code_with_a_percentile_and_older_with_another_crash_are_read() -> None:
    event = one(
        "[eplb/worker] Expert hotness imbalance, current: mean=1.250 p95=1.900 max=2.000, "
        "updated: mean=1.033 p95=1.100 max=1.120, changed_layers=1 rank_transfers=2")
    assert (event.value, event.worst) == (0.8, 0.5)
    for line in "[EPLB subprocess exiting due to error: x]", "[EPLB subprocess Exiting due to error: x]":
        (crash,) = reader().read_block(f"a\n{line}\n".encode(), NOW)
        assert isinstance(crash, Problem)
        assert crash.reason == "eplb_crashed"


def rebalances(*lines: tuple[float, str]) -> list[Any]:
    source = reader()
    return [event for after, line in lines for event in source.read(line, NOW + after)]


def test_a_rearrangement_with_an_end_counts_once_with_its_duration() -> None:
    assert rebalances(
        (0, VLLM), (1, "Rearranging experts sync mode ..."), (3, "Rearranged experts  in 2.15 s."), (99, VLLM),
    )[1] == Rebalance("moonshotai/Kimi-K3", NOW + 1, 2.15)
    assert rebalances((0, "[EPLBManager] rebalance start"), (1, "[EPLBManager] rebalance end time=1.500s")) == [
        Rebalance("", NOW, 1.5)]


def test_a_rearrangement_without_an_end_counts_when_it_was_not_called_off_for_a_minute() -> None:
    begun = (0.0, "Rearranging experts (async mode) ...")
    assert rebalances(begun, (59, "earrang")) == []
    assert rebalances(begun, (61, "earrang")) == [Rebalance("", NOW)]
    assert rebalances(begun, (30, begun[1])) == [Rebalance("", NOW)]
    assert rebalances(begun, (8, SKIP), (99, "earrang")) == []


@pytest.mark.parametrize(("start", "end"), [
    ("Rearranging experts (profile)...", "Rearranged experts (profile) in 1.00 seconds."),  # vLLM 0.9 to 0.11
    ("Rearranging experts sync mode (profile)...", "Rearranged experts (profile) in 1.00 seconds."),  # 0.12, 0.13
    ("Rearranging experts sync mode (profile)...", "Rearranged experts  (profile)  in 1.00 s."),  # 0.14 on
    ("Rearranging experts (async mode) (profile)...", "Rearranged experts  (profile)  in 1.00 s."),
])
def test_profiling_is_no_rearrangement(start: str, end: str) -> None:
    assert rebalances((0.0, start), (1.0, end), (99, "earrang")) == []


def test_a_skipped_rearrangement_is_none_though_vllm_prints_its_end() -> None:
    start, skip, end = "Rearranging experts sync mode ...", SKIP, "Rearranged experts   in 0.00 s."
    assert rebalances((0, start), (0, skip), (0, end), (99, "earrang")) == []
    # the model is skipped, its drafter is not
    assert rebalances((0, start), (0, skip), (0, end), (1, end), (99, "earrang")) == [Rebalance("", NOW, 0)]
    assert rebalances((0, start), (1, end), (2, end), (99, "earrang")) == [Rebalance("", NOW, 0)]


def test_the_ranks_of_sglang_tell_of_one_rearrangement_together() -> None:
    def ranks(after: float, text: str) -> list[tuple[float, str]]:
        return [(after + rank / 100, f"[2026-11-02 10:15:01 DP{rank} TP{rank} EP{rank}] {text}") for rank in range(8)]

    start, end = "[EPLBManager] rebalance start", "[EPLBManager] rebalance end time=1.500s"
    skip = "[EPLBManager] Skipped ep rebalancing: current GPU utilization 0.95 > minimum rebalance threshold 0.90"
    assert rebalances(*ranks(0, start), *ranks(2, end), (99, "EPLB")) == [Rebalance("", NOW, 1.5)]
    assert rebalances(*ranks(0, start), *ranks(1, skip), *ranks(30, start), *ranks(32, end), (199, "EPLB")) == [
        Rebalance("", NOW + 30, 1.5)]


@given(st.text(max_size=200))
def test_junk_around_a_marker_never_raises(junk: str) -> None:
    markers = "EPLB step:", "[Expert Balancedness]", "xpert hotness imbalance, current: mean=", '{"m": "EPLB step:'
    for marker in markers:
        list(reader().read(junk + marker + junk, NOW))


def test_hostile_numbers_and_names_are_no_readings() -> None:
    for line in (
        VLLM.replace("61440.00", "9" * 400), VLLM.replace("0.9178", "1.5"), VLLM.replace("0.9178", "-1"),
        VLLM.replace("moonshotai/Kimi-K3", "x" * 5000), ASCEND.format(0.5, 0.2), SGLANG.format(value=7, total=3),
    ):
        assert list(reader().read(line, NOW)) == []
    surrogate = '{"message": "' + VLLM.replace("moonshotai/Kimi-K3", "\\ud800") + '"}'
    one(surrogate).model.encode()


def test_marked_lines_are_found_once_and_in_order() -> None:
    block = b"1 step 2 step\nnothing\nmanager\nstep manager"
    assert marked_lines(block, (b"manager", b"step")) == [b"1 step 2 step", b"manager", b"step manager"]
    assert marked_lines(b"nothing\nhere", (b"step",)) == []


LINES: dict[Engine, list[str]] = {
    "vllm": [
        "Initializing a V1 LLM engine (v0.33.0) with config", VLLM, "Rearranging experts sync mode ...",
        "Rearranged experts  in 2.15 s.", "Rearranging experts (async mode) ...",
        SKIP, "async loop error (Rank 0): x"],
    "vllm-ascend": [
        ASCEND.format(1.5, 2.0), "[Expert Hotness] Current: mean=1.250, max=2.000, Updated: mean=1.033, max=1.120",
        "[eplb/worker] Subprocess crashed, EPLB optimization will stop. error=x"],
    "sglang": [
        SGLANG.format(value=0.5, total=64), "[EPLBManager] rebalance start",
        "[EPLBManager] Skipped ep rebalancing: current GPU utilization 1", "[EPLBManager] rebalance start",
        "[EPLBManager] rebalance end time=1.500s"],
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("told", [True, False])
def test_what_is_read_line_by_line_is_read_from_a_block_of_other_lines_too(engine: Engine, told: bool) -> None:
    one_by_one, at_once = (reader(None, engine=engine if told else None) for _ in range(2))
    expected = [event for line in LINES[engine] for event in one_by_one.read(line, NOW)]
    assert list(at_once.read_block("\nan access log\n".join(LINES[engine]).encode(), NOW)) == expected
    assert len(expected) == {"vllm": 3, "vllm-ascend": 3, "sglang": 2}[engine]


@pytest.mark.parametrize("cut", range(len(VLLM)))
def test_a_line_written_into_the_middle_of_another_gives_no_other_name_than_its_own(cut: int) -> None:
    events = list(reader().read(VLLM[:cut] + "(Worker pid=1) INFO " + VLLM, NOW))
    assert {event.model for event in events if isinstance(event, BalanceReading)} <= {"moonshotai/Kimi-K3"}
