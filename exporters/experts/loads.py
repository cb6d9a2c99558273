"""What a source of expert loads hands over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["rank", "expert"]
Phase = Literal["prefill", "decode", "mixed", "all"]


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """Counts of token-to-expert assignments over one interval.

    ``counts[layer][i]`` is the load of expert-parallel rank ``i`` (``scope="rank"``) or of logical expert ``i``
    (``scope="expert"``); all rows have the same length, one row a MoE layer. Counts may carry a constant factor, so
    that only ratios of them mean something. ``time`` is the unix time of the interval's end.
    """

    model: str
    scope: Scope
    counts: tuple[tuple[int, ...], ...]
    seconds: float
    time: float
    phase: Phase = "all"
    layers: tuple[int, ...] = ()
    ranks_seen: int | None = None
    ranks_expected: int | None = None
    recorded_share: float = 1.0


@dataclass(frozen=True, slots=True)
class BalanceReading:
    """A balance that a source computed itself, by ``formula``, over the tokens it weighs with.

    ``value`` is in (0, 1], 1 is even (a source that prints an imbalance is turned round). ``worst`` is the least even
    layer where the source tells it. ``tokens`` weighs the reading; None where the source does not say.
    """

    model: str
    formula: Literal["ratio_of_sums", "reciprocal_of_mean", "mean_of_layers"]
    value: float
    time: float
    phase: Phase = "all"
    worst: float | None = None
    tokens: float | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A rearrangement of experts; ``seconds`` where the source tells its duration."""

    model: str
    time: float
    seconds: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
