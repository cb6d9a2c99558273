from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.drill.advance import Replay, UnknownSeriesError
from k3observe.drill.exposition import parse

CAPTURE = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 100.0
# TYPE vllm:running gauge
vllm:running{engine="0"} 3.0
vllm:running{engine="1"} 4.0
# TYPE vllm:tokens_total counter
vllm:tokens_total{engine="0"} 10.0
vllm:tokens_total{engine="1"} 20.0
# TYPE vllm:tokens_created gauge
vllm:tokens_created{engine="0"} 100.0
# TYPE vllm:wait_seconds histogram
vllm:wait_seconds_bucket{le="0.5"} 1.0
vllm:wait_seconds_bucket{le="1.0"} 3.0
vllm:wait_seconds_bucket{le="+Inf"} 4.0
vllm:wait_seconds_count 4.0
vllm:wait_seconds_sum 6.0
# TYPE http_bytes summary
http_bytes_count 1.0
http_bytes_sum 50.0
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replay(clock: Clock) -> Replay:
    return Replay(parse(CAPTURE, "capture.prom"), clock, lambda: 5000.0)


def values(replay: Replay) -> dict[str, float]:
    return {
        series.name + "".join(f"{{{value}}}" for _, value in series.labels): series.value
        for family in replay.families()
        for series in family.series
    }


def test_nothing_moves_until_it_is_told_to(replay: Replay, clock: Clock) -> None:
    before = values(replay)
    clock.now += 60
    assert values(replay) == before


def test_a_counter_grows_at_its_rate_and_keeps_what_it_had_when_the_rate_changes(replay: Replay, clock: Clock) -> None:
    replay.set_rate("vllm:tokens_total", 2.0, {"engine": "1"})
    clock.now += 10
    replay.set_rate("vllm:tokens_total", 0.5, {"engine": "1"})
    clock.now += 10
    now = values(replay)
    assert (now["vllm:tokens_total{0}"], now["vllm:tokens_total{1}"]) == (10.0, 45.0)


def test_a_gauge_is_set_where_its_labels_match_in_either_spelling(replay: Replay) -> None:
    replay.set_gauge("vllm_running", 9.0, {"engine": "0"})
    now = values(replay)
    assert (now["vllm:running{0}"], now["vllm:running{1}"]) == (9.0, 4.0)


def test_observations_fill_the_buckets_they_belong_to_and_sum_and_count_follow(replay: Replay, clock: Clock) -> None:
    replay.observe("vllm:wait_seconds", {0.7: 2.0, 30.0: 1.0})
    replay.observe("http_bytes", {8.0: 1.0})
    clock.now += 10
    now = values(replay)
    assert now["vllm:wait_seconds_bucket{0.5}"] == 1.0
    assert now["vllm:wait_seconds_bucket{1.0}"] == 23.0
    assert now["vllm:wait_seconds_bucket{+Inf}"] == now["vllm:wait_seconds_count"] == 34.0
    assert now["vllm:wait_seconds_sum"] == 6.0 + 10 * (0.7 * 2 + 30)
    assert (now["http_bytes_count"], now["http_bytes_sum"]) == (11.0, 130.0)


def test_without_chosen_values_a_histogram_grows_in_the_shape_of_its_capture(replay: Replay, clock: Clock) -> None:
    replay.set_all_rates(4.0)
    clock.now += 1
    now = values(replay)
    names = ("bucket{0.5}", "bucket{1.0}", "bucket{+Inf}", "count", "sum")
    assert [now[f"vllm:wait_seconds_{name}"] for name in names] == [2.0, 6.0, 8.0, 8.0, 12.0]
    assert now["vllm:tokens_total{0}"] == 14.0


def test_a_restart_zeroes_what_only_grows_and_renews_the_birth_times(replay: Replay, clock: Clock) -> None:
    replay.set_rate("vllm:tokens_total", 1.0)
    clock.now += 10
    replay.restart()
    now = values(replay)
    assert now["vllm:tokens_total{0}"] == now["vllm:wait_seconds_count"] == now["vllm:wait_seconds_bucket{0.5}"] == 0.0
    assert now["vllm:tokens_created{0}"] == now["process_start_time_seconds"] == 5000.0
    assert now["vllm:running{1}"] == 4.0
    clock.now += 3
    assert values(replay)["vllm:tokens_total{0}"] == 3.0


@given(st.lists(st.dictionaries(st.floats(0, 10), st.floats(0, 1e6), max_size=4), max_size=5))
def test_a_histogram_is_consistent_at_every_instant(changes: list[dict[float, float]]) -> None:
    clock = Clock()
    replay = Replay(parse(CAPTURE), clock)
    for change in changes:
        replay.observe("vllm:wait_seconds", change)
        clock.now += 0.37
        now = values(replay)
        buckets = [now[f"vllm:wait_seconds_bucket{{{le}}}"] for le in ("0.5", "1.0", "+Inf")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == now["vllm:wait_seconds_count"]


def test_an_unknown_series_is_refused_with_the_nearest_names(replay: Replay) -> None:
    with pytest.raises(UnknownSeriesError, match=r"capture\.prom has no gauge or untyped vllm:runing; .*vllm:running"):
        replay.set_gauge("vllm:runing", 1.0)
    with pytest.raises(UnknownSeriesError, match=r'no counter vllm:tokens_total with \{engine="7"\}'):
        replay.set_rate("vllm:tokens_total", 1.0, {"engine": "7"})


def test_a_counter_cannot_be_made_to_fall(replay: Replay) -> None:
    with pytest.raises(ValueError, match="a counter never falls"):
        replay.set_rate("vllm:tokens_total", -1.0)
