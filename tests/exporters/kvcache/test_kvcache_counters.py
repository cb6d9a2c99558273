from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.kvcache.counters import Counters


def device(hits: float) -> tuple[tuple[str, float], ...]:
    return (("device", hits),)


def test_a_ratio_is_of_its_window_and_absent_before_the_window_is_covered() -> None:
    counters = Counters(5)
    for second in range(0, 601, 5):
        # 40 % hits for the first nine minutes, then 90 %.
        queries, hits = second * 100, second * 40 if second <= 540 else 540 * 40 + (second - 540) * 90
        counters.add(1000.0 + second, queries, device(hits))
        ratios = counters.ratios()
        assert ("1m" in ratios) == (second >= 55)
        assert ("5m" in ratios) == (second >= 295)
    assert counters.ratios() == {"1m": pytest.approx(0.9), "5m": pytest.approx(0.5)}


def test_without_lookups_there_is_no_ratio() -> None:
    counters = Counters(5)
    for second in range(0, 400, 5):
        counters.add(second, 70.0, device(30))
    assert counters.ratios() == {}


def test_after_a_gap_a_window_counts_again_when_it_is_covered() -> None:
    counters = Counters(5)
    seen = {}
    for second in [*range(0, 100, 5), *range(200, 300, 5)]:
        counters.add(second, second * 10, device(second * 5))
        seen[second] = counters.ratios()
    assert seen[95] == {"1m": 0.5}
    assert seen[200] == {}
    assert seen[250] == {}
    assert seen[260] == {"1m": 0.5}


def test_a_restart_keeps_totals_and_windows_right() -> None:
    counters = Counters(5)
    for second in range(0, 60, 5):
        counters.add(second, 1000 + second * 10, device(500 + second * 5))
    totals = counters.add(60, 40, device(10))
    assert (totals.queries, totals.hits) == (1550 + 40, {"device": 775 + 10})
    totals = counters.add(65, 90, device(10))
    assert counters.ratios() == {"1m": pytest.approx((785 - 525) / (1640 - 1050))}


def test_a_restart_with_higher_counters_shows_in_the_start_time_and_a_clock_that_is_set_is_none() -> None:
    counters = Counters(5)
    counters.add(0, 100, device(50), start_time=1000.0)
    assert counters.add(5, 100, device(50), start_time=1001.0).queries == 100
    assert counters.add(10, 120, device(60), start_time=1060.0).hits == {"device": 110}
    assert counters.add(15, 130, device(60), start_time=None).queries == 230
    assert counters.add(20, 140, device(60), start_time=1060.0).queries == 240


def test_a_tier_that_vanishes_keeps_its_total() -> None:
    counters = Counters(5)
    counters.add(0, 10, (("device", 4.0), ("host", 3.0)))
    assert counters.add(5, 12, device(5)).hits == {"device": 5.0, "host": 3.0}
    assert counters.add(10, 14, (("device", 6.0), ("host", 4.0))).hits == {"device": 6.0, "host": 4.0}
    assert counters.add(15, 3, device(1)).hits == {"device": 7.0, "host": 4.0}
    assert counters.add(20, 5, (("device", 1.0), ("host", 1.0))).hits == {"device": 7.0, "host": 5.0}


def test_tiers_that_are_renamed_again_and_again_are_no_series_without_end() -> None:
    counters = Counters(5)
    for step in range(100):
        totals = counters.add(step * 5, step, (*device(step), (f"tier {step}", 1.0)))
    assert len(totals.hits) == 8
    assert totals.hits["device"] == 99


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=80), st.floats(0.1, 60))
def test_totals_never_fall_and_ratios_stay_within_0_and_1(raw: list[tuple[int, int]], interval: float) -> None:
    counters = Counters(interval)
    before = (0.0, 0.0)
    for step, (queries, hits) in enumerate(raw):
        totals = counters.add(step * interval, queries, device(hits))
        assert totals.queries >= before[0]
        assert totals.all_hits >= before[1]
        before = totals.queries, totals.all_hits
        assert all(0 <= ratio <= 1 for ratio in counters.ratios().values())
    assert len(counters._history) <= 300 / interval + 4


def test_after_a_restart_a_counter_that_has_overtaken_its_old_value_is_counted_from_zero_too() -> None:
    counters = Counters(5)
    for second in range(0, 60, 5):
        counters.add(second, 1000.0, device(10))
    assert counters.add(60, 500, device(50)).hits == {"device": 60}
    assert counters.ratios() == {"1m": pytest.approx(0.1)}
