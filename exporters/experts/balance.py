"""Balance and variance of expert loads: the definitions, on integers, standard library only.

For one MoE layer with loads x_1…x_n (of expert-parallel ranks, or of logical experts):

* balance = mean(x) / max(x), in (0, 1]; 1 is even;
* variance = population variance of x / mean(x) = squared coefficient of variation; 0 is even.

A service's value is the mean over the layers that had traffic, with the worst layer beside it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from operator import mul

Row = Sequence[int]


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance and variance over the layers with traffic, and of each layer (None: no traffic)."""

    balance: float
    worst: float
    variance: float
    variance_worst: float
    layers: tuple[float | None, ...]
    tokens: float
    """Mean of the layers' total loads, over the layers with traffic."""


def layer_balance(row: Row) -> float | None:
    """Return mean over maximum of the loads of one layer; None when it had no traffic."""
    total = sum(row)
    return total / (len(row) * max(row)) if total else None


def layer_variance(row: Row) -> float | None:
    """Return the squared coefficient of variation of the loads of one layer; None when it had no traffic."""
    total = sum(row)
    # The numerator is exact in integers: an even load gives 0, and rounding never a negative variance.
    return (len(row) * sum(map(mul, row, row)) - total * total) / (total * total) if total else None


def balance(counts: Sequence[Row]) -> Balance | None:
    """Return balance and variance of ``counts[layer][i]``; None when no layer had traffic."""
    layers = tuple(map(layer_balance, counts))
    values = [value for value in layers if value is not None]
    if not values:
        return None
    variances = [value for value in map(layer_variance, counts) if value is not None]
    return Balance(
        balance=fsum(values) / len(values),
        worst=min(values),
        variance=fsum(variances) / len(variances),
        variance_worst=max(variances),
        layers=layers,
        tokens=sum(map(sum, counts)) / len(values),
    )


def variance_lower_bound(value: float, ranks: int) -> float:
    """Return the least variance that a balance over ``ranks`` allows: (max/mean - 1)^2 / (n - 1), max/mean = 1/value.

    It is reached when all ranks but the busiest carry the same load.
    """
    return (1 / value - 1) ** 2 / (ranks - 1) if ranks > 1 else 0.0


def relative_loads(counts: Sequence[Row]) -> tuple[float, ...]:
    """Return each column's load over the mean of its layer, averaged over the layers with traffic."""
    busy = [(row, sum(row)) for row in counts]
    busy = [(row, total) for row, total in busy if total]
    if not busy:
        return ()
    width = len(busy[0][0])
    scaled = [[x * width / total for x in row] for row, total in busy]
    return tuple(fsum(column) / len(busy) for column in zip(*scaled, strict=True))


def placed(counts: Sequence[Row], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Add the loads of experts that lie in ``ranks`` blocks of equal size to loads of ranks.

    Raises ValueError when the experts do not divide by the ranks.
    """
    width = len(counts[0]) if counts else 0
    if ranks < 1 or width % ranks:
        raise ValueError(f"{width} experts do not divide into {ranks} ranks of equal size")
    size = width // ranks
    starts = range(0, width, size) if size else ()
    return tuple(tuple([sum(row[start : start + size]) for start in starts]) for row in counts)


def hottest(counts: Sequence[Row], top: int) -> list[tuple[int, int, float]]:
    """Return (row, column, load over the mean of its layer) of the ``top`` most loaded experts, hottest first."""
    candidates: list[tuple[float, int, int]] = []
    for layer, row in enumerate(counts):
        total = sum(row)
        if total:
            scale = len(row) / total
            for load, place in heapq.nlargest(top, zip(row, range(0, -len(row), -1), strict=True)):
                candidates.append((load * scale, -layer, place))
    return [(-layer, -place, ratio) for ratio, layer, place in heapq.nlargest(top, candidates)]


def dead(counts: Sequence[Row]) -> int:
    """Return how many experts no token reached, over the layers with traffic."""
    return sum(row.count(0) for row in map(list, counts) if any(row))
