"""The metric families of a window: which values it gives, and how many series that can be.

At most 30 series a model and one more for each rank: values of both scopes for all phases together, the balance of
ranks for each phase, tokens, ranks, rearrangements and the state of the sources. Devices of ranks, layers and hottest
experts come on top where they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from k3observe.exporters import families
from k3observe.exporters.experts import balance
from k3observe.exporters.experts.loads import ExpertLoads
from k3observe.exporters.experts.merge import column_ids, layer_ids
from k3observe.exporters.experts.window import Averaged

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """What is exported: ``min_load`` is the mean load of a rank or expert below which a balance is left out."""

    min_load: float = 100.0
    layers: bool = False
    top: int = 0
    ranks: int | None = None


class _Samples:
    """Samples by family and labels; the first value of a series stays, so that none is exposed twice."""

    def __init__(self) -> None:
        self._values: dict[families.Family, dict[Labels, float]] = {}

    def add(self, family: families.Family, labels: Labels, value: float | None) -> None:
        if value is not None:
            self._values.setdefault(family, {}).setdefault(labels, value)

    def families(self) -> Iterable[Metric]:
        for family, samples in self._values.items():
            metric = family.new()
            for labels, value in samples.items():
                metric.add_metric(labels, value)
            yield metric


def report(loads: Iterable[ExpertLoads], readings: Iterable[Averaged], options: Options) -> Iterable[Metric]:
    """Yield the families of summed counts and averaged readings; counts win where both give a series."""
    samples = _Samples()
    for part in sorted(loads, key=lambda part: part.scope == "expert"):
        _counted(samples, part, options)
    for reading in _with_all(list(readings)):
        _read(samples, reading)
    yield from samples.families()


def _counted(samples: _Samples, loads: ExpertLoads, options: Options) -> None:
    model, phase, scope = loads.model, loads.phase, loads.scope
    found = balance.balance(loads.counts)
    if phase == "all":
        samples.add(families.EXPERT_RANKS_SEEN, (model,), loads.ranks_seen)
        samples.add(families.EXPERT_RANKS_EXPECTED, (model,), options.ranks or loads.ranks_expected)
    if found is None:
        return
    samples.add(families.EXPERT_WINDOW_TOKENS, (model, phase), found.tokens)
    columns = column_ids(loads)
    if found.tokens < options.min_load * len(columns):
        return  # even a perfect router is uneven with so few
    labels = (model, phase, scope, "mean_of_layers")
    if phase != "all":
        if scope == "rank":
            samples.add(families.EXPERT_BALANCE, labels, found.balance)
        return
    samples.add(families.EXPERT_BALANCE, labels, found.balance)
    samples.add(families.EXPERT_BALANCE_WORST, labels, found.worst)
    samples.add(families.EXPERT_VARIANCE, labels, found.variance)
    samples.add(families.EXPERT_VARIANCE_WORST, labels, found.variance_worst)
    layers = layer_ids(loads)
    if scope == "rank":
        for rank, load in zip(columns, balance.relative_loads(loads.counts), strict=True):
            samples.add(families.EXPERT_RANK_LOAD, (model, str(rank)), load)
        for layer, value in zip(layers, found.layers, strict=True) if options.layers else ():
            samples.add(families.EXPERT_LAYER_BALANCE, (model, str(layer)), value)
    elif options.top:
        samples.add(families.EXPERT_DEAD, (model,), balance.dead(loads.counts))
        for position, (row, column, ratio) in enumerate(balance.hottest(loads.counts, options.top), 1):
            place = (model, str(layers[row]), str(columns[column]), str(position))
            samples.add(families.EXPERT_HOTTEST, place, ratio)


def _read(samples: _Samples, reading: Averaged) -> None:
    labels = (reading.model, reading.phase, "rank", reading.formula)
    samples.add(families.EXPERT_WINDOW_TOKENS, (reading.model, reading.phase), reading.tokens)
    samples.add(families.EXPERT_BALANCE, labels, reading.value)
    if reading.phase != "all":
        return
    samples.add(families.EXPERT_RANKS_EXPECTED, (reading.model,), reading.ranks)
    samples.add(families.EXPERT_BALANCE_WORST, labels, reading.worst)
    if reading.value is not None and reading.ranks is not None and reading.ranks > 1:
        bound = balance.variance_lower_bound(reading.value, reading.ranks)
        samples.add(families.EXPERT_VARIANCE_BOUND, labels, bound)


def _with_all(readings: Sequence[Averaged]) -> list[Averaged]:
    """Return the readings with phase ``all`` averaged from the others where a source reads only phases."""
    groups: dict[tuple[str, str], list[Averaged]] = {}
    for reading in readings:
        groups.setdefault((reading.model, reading.formula), []).append(reading)
    result = list(readings)
    for parts in groups.values():
        valued = [part for part in parts if part.value is not None]
        weight = sum(part.weight for part in valued)
        if all(part.phase != "all" for part in parts) and weight:
            result.append(Averaged(
                parts[0].model, parts[0].formula, "all",
                value=sum(part.weight * (part.value or 0.0) for part in valued) / weight, worst=None,
                tokens=sum(part.tokens or 0.0 for part in parts) or None, weight=weight, ranks=parts[0].ranks))
    return result


def rebalance_families(counts: Mapping[str, int], seconds: Mapping[str, float]) -> Iterable[Metric]:
    """Yield the number of rearrangements by model, and how long the last one took."""
    total, last = families.EXPERT_REBALANCES.new(), families.EXPERT_REBALANCE_SECONDS.new()
    for model, count in counts.items():
        total.add_metric((model,), count)
    for model, duration in seconds.items():
        last.add_metric((model,), duration)
    yield from (total, last)
