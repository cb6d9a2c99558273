from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.experts import balance

loads = st.integers(0, 10**9)
rows = st.integers(1, 12).flatmap(
    lambda width: st.lists(st.lists(loads, min_size=width, max_size=width), min_size=1, max_size=5))
busy_rows = rows.filter(lambda counts: any(map(any, counts)))


@given(st.integers(1, 10**9), st.integers(1, 64), st.integers(1, 92))
def test_even_load_has_balance_1_and_variance_0(load: int, ranks: int, layers: int) -> None:
    found = balance.balance([[load] * ranks] * layers)
    assert found is not None
    assert (found.balance, found.worst, found.variance, found.variance_worst) == (1, 1, 0, 0)


@given(busy_rows, st.integers(2, 10**6))
def test_a_common_factor_changes_nothing(counts: list[list[int]], factor: int) -> None:
    scaled = balance.balance([[x * factor for x in row] for row in counts])
    found = balance.balance(counts)
    assert found is not None
    assert scaled is not None
    assert (scaled.balance, scaled.worst, scaled.layers) == (found.balance, found.worst, found.layers)
    assert (scaled.variance, scaled.variance_worst) == (found.variance, found.variance_worst)


@given(busy_rows, st.integers(1, 5))
def test_layers_without_traffic_count_for_nothing(counts: list[list[int]], idle: int) -> None:
    found = balance.balance(counts)
    padded = balance.balance([*counts, *[[0] * len(counts[0])] * idle])
    assert found is not None
    assert padded is not None
    assert padded.layers[len(counts) :] == (None,) * idle
    assert (padded.balance, padded.worst, padded.variance, padded.tokens) == (
        found.balance, found.worst, found.variance, found.tokens)


@given(busy_rows)
def test_values_are_those_of_the_definition(counts: list[list[int]]) -> None:
    found = balance.balance(counts)
    assert found is not None
    busy = [row for row in counts if any(row)]
    balances = [statistics.mean(row) / max(row) for row in busy]
    variances = [statistics.pvariance([x / statistics.mean(row) for x in row]) for row in busy]
    assert found.balance == pytest.approx(statistics.mean(balances))
    assert found.worst == pytest.approx(min(balances))
    assert found.variance == pytest.approx(statistics.mean(variances), abs=1e-12)
    assert found.variance_worst == pytest.approx(max(variances), abs=1e-12)
    assert 0 < found.worst <= found.balance <= 1


@given(rows)
def test_order_of_ranks_and_layers_does_not_matter(counts: list[list[int]]) -> None:
    mixed = [random.Random(1).sample(row, len(row)) for row in reversed(counts)]
    one, other = balance.balance(counts), balance.balance(mixed)
    assert (one is None) == (other is None)
    if one and other:
        assert (one.balance, one.worst, one.variance) == (other.balance, other.worst, other.variance)


@given(busy_rows.filter(lambda counts: len(counts[0]) > 1))
def test_the_lower_bound_is_never_above_the_variance(counts: list[list[int]]) -> None:
    found = balance.balance(counts)
    assert found is not None
    bound = balance.variance_lower_bound(found.balance, len(counts[0]))
    assert bound <= found.variance * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("ranks", "stretch"), [(8, 2.45), (16, 3.12), (64, 5.35)])
def test_one_hot_rank_reaches_the_lower_bound(ranks: int, stretch: float) -> None:
    assert balance.variance_lower_bound(1 / stretch, ranks) == pytest.approx(0.3, abs=0.005)


def test_a_layer_at_an_eighth_hides_in_the_mean_but_not_in_the_worst() -> None:
    found = balance.balance([[100] * 16] * 59 + [[1600] + [100] * 15])
    assert found is not None
    assert found.balance > 0.98
    assert found.worst == pytest.approx(0.1211, abs=1e-4)


def test_no_traffic_at_all_is_no_balance() -> None:
    assert balance.balance([[0, 0], [0, 0]]) is None
    assert balance.balance([]) is None
    assert balance.relative_loads([[0, 0]]) == ()


@given(busy_rows)
def test_relative_loads_have_a_mean_of_1(counts: list[list[int]]) -> None:
    assert statistics.mean(balance.relative_loads(counts)) == pytest.approx(1)


def test_experts_in_blocks_add_up_to_ranks() -> None:
    assert balance.placed([[1, 2, 3, 4], [5, 6, 7, 8]], 2) == ((3, 7), (11, 15))
    with pytest.raises(ValueError, match="4 experts do not divide into 3 ranks"):
        balance.placed([[1, 2, 3, 4]], 3)


def test_the_hottest_experts_come_with_their_layer_and_the_dead_are_counted() -> None:
    counts = [[0, 4, 4, 0], [1, 1, 1, 13], [0, 0, 0, 0]]
    assert balance.hottest(counts, 3) == [(1, 3, 3.25), (0, 1, 2.0), (0, 2, 2.0)]
    assert balance.dead(counts) == 2
