"""What a source of expert loads hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Scope = Literal["rank", "expert"]
Phase = Literal["prefill", "decode", "mixed", "all"]
Formula = Literal["mean_of_layers", "ratio_of_sums", "reciprocal_of_mean"]


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """Counts of token-to-expert assignments over one interval.

    ``counts[layer][i]`` is the load of expert-parallel rank ``columns[i]`` (``scope="rank"``) or of logical expert
    ``columns[i]`` (``scope="expert"``); all rows have the same length, one row a MoE layer. ``layers`` and ``columns``
    are the identities of rows and columns, empty for 0, 1, 2…; a row or column that is not there is not known, which
    is not the same as 0. Counts may carry a constant factor, so that only ratios of them mean something. ``time`` is
    the unix time of the interval's end. ``ranks_seen`` is how many ranks of ``ranks_expected`` contributed.
    """

    model: str
    scope: Scope
    counts: tuple[tuple[int, ...], ...]
    seconds: float
    time: float
    phase: Phase = "all"
    layers: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    ranks_seen: int | None = None
    ranks_expected: int | None = None


class BalanceReading(NamedTuple):
    """A balance that a source computed itself, by ``formula``.

    ``value`` is in (0, 1], 1 is even (a source that prints an imbalance is turned round). ``worst`` is the least even
    layer where the source tells it. ``weight`` weighs the reading against others of the same source. ``tokens`` is the
    number of token-to-expert assignments per MoE layer and ``rank_load`` its mean per rank, None where not known.
    """

    model: str
    formula: Formula
    value: float
    time: float
    phase: Phase = "all"
    worst: float | None = None
    weight: float = 1.0
    tokens: float | None = None
    rank_load: float | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A rearrangement of experts; ``seconds`` where the source tells its duration."""

    model: str
    time: float
    seconds: float | None = None


Event = ExpertLoads | BalanceReading | Rebalance
