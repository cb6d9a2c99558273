from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.experts.loads import BalanceReading, ExpertLoads
from k3observe.exporters.experts.merge import all_phases, merge
from k3observe.exporters.experts.window import Window


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def loads(counts: tuple[tuple[int, ...], ...], time: float, **others: object) -> ExpertLoads:
    return ExpertLoads("K3", "rank", counts, 1.0, time, **others)  # type: ignore[arg-type]


def reading(value: float, time: float, **others: object) -> BalanceReading:
    return BalanceReading("K3", "ratio_of_sums", value, time, **others)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=60))
def test_the_window_is_the_sum_of_its_intervals(counts: list[tuple[int, int]]) -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    for index, row in enumerate(counts):
        window.add(loads((row,), clock.now - index * 4))
    (total,) = window.loads()
    assert total.counts == ((sum(a for a, _ in counts), sum(b for _, b in counts)),)


def test_intervals_leave_the_window_when_their_time_has_passed() -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    window.add(loads(((1, 2),), clock.now))
    clock.now += 150
    window.add(loads(((10, 20),), clock.now))
    assert window.loads()[0].counts == ((11, 22),)
    clock.now += 151
    assert window.loads()[0].counts == ((10, 20),)
    clock.now += 300
    assert window.loads() == []
    assert not window.add(loads(((1, 2),), clock.now - 301))


def test_a_time_in_the_future_counts_as_now() -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    window.add(loads(((1, 2),), clock.now + 1e6))
    clock.now += 301
    assert window.loads() == []


def test_a_resized_group_starts_the_window_anew() -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    window.add(loads(((1, 2),), clock.now))
    window.add(loads(((1, 2, 3, 4),), clock.now))
    assert window.loads()[0].counts == ((1, 2, 3, 4),)


def test_pipeline_stages_are_layers_of_one_window() -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    for first in (0, 2):
        window.add(loads(((1, 2), (3, 4)), clock.now, layers=(first, first + 1)))
    (total,) = window.loads()
    assert total.layers == (0, 1, 2, 3)
    assert total.counts == ((1, 2), (3, 4), (1, 2), (3, 4))


def test_readings_are_weighted_by_their_tokens() -> None:
    clock = Clock()
    window = Window(300, 10, clock)
    window.add(reading(0.9, clock.now, weight=3000, tokens=3000, rank_load=300))
    window.add(reading(0.5, clock.now, weight=1000, tokens=1000, rank_load=100))
    (average,) = window.readings()
    assert average.value == pytest.approx(0.8)
    assert average.tokens == 4000


def test_readings_of_few_tokens_add_tokens_but_no_balance() -> None:
    clock = Clock()
    window = Window(300, 100, clock)
    window.add(reading(0.2, clock.now, weight=8, tokens=64, rank_load=8))
    (average,) = window.readings()
    assert average.value is None
    assert average.tokens == 64
    window.add(reading(0.9, clock.now, weight=800, tokens=6400, rank_load=800))
    assert window.readings()[0].value == pytest.approx(0.9)


def test_of_too_many_models_the_later_are_refused_until_others_are_gone() -> None:
    clock = Clock()
    window = Window(300, 0, clock, max_models=2)
    added = [window.add(BalanceReading(name, "ratio_of_sums", 0.5, clock.now)) for name in "abc"]
    assert added == [True, True, False]
    clock.now += 301
    assert window.add(BalanceReading("c", "ratio_of_sums", 0.5, clock.now))


def test_all_is_the_sum_of_phases_where_only_phases_are_counted() -> None:
    parts = [loads(((1, 2),), 1.0, phase="prefill"), loads(((10, 20),), 1.0, phase="decode")]
    assert [part.counts for part in all_phases(parts) if part.phase == "all"] == [((11, 22),)]
    assert len(all_phases([*parts, loads(((5, 5),), 1.0)])) == 3


def test_columns_that_nobody_counted_are_not_zero() -> None:
    left, right = loads(((1, 2),), 1.0, columns=(0, 1)), loads(((3, 4),), 1.0, columns=(2, 3))
    assert merge([left, right]).counts == ((1, 2, 3, 4),)
    with pytest.raises(ValueError, match="layer 1 has counts of 2 columns"):
        merge([left, right, loads(((3, 4),), 1.0, columns=(2, 3), layers=(1,))])


def test_a_clock_that_is_put_back_leaves_nothing_old_in_the_window() -> None:
    clock = Clock()
    window = Window(300, 0, clock)
    window.add(loads(((1, 2),), clock.now))
    window.add(reading(0.5, clock.now))
    clock.now -= 3600
    window.add(loads(((10, 20),), clock.now))
    assert window.loads()[0].counts == ((10, 20),)
    assert window.readings() == []
    clock.now -= 1  # slewed: nothing is lost
    assert window.loads()[0].counts == ((10, 20),)


def test_phases_of_groups_of_different_size_have_no_sum_and_cost_nothing_else() -> None:
    parts = [loads(((1, 2),), 0, phase="prefill"), loads(((1, 2, 3),), 0, phase="decode")]
    assert [part.phase for part in all_phases(parts)] == ["prefill", "decode"]
