"""SGLang's own families of expert balance.

``sglang:eplb_gpu_physical_count`` (from 0.5.5 on) is declared a histogram, but the bucket bound ``le`` is the number
of an expert-parallel rank: the load of rank r is bucket{le=r} less bucket{le=r-1}. ``sglang:eplb_balancedness`` (from
0.5.7 on) is a summary of the balance of each forward pass, by forward mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from k3observe.exporters.experts.counters import Increases
from k3observe.exporters.experts.loads import BalanceReading, Event, ExpertLoads, Phase
from k3observe.exporters.exposition import Reader

MAX_RANKS = 1024
MAX_NAME = 256
_BUCKET = "sglang:eplb_gpu_physical_count_bucket"
_SUM, _COUNT = "sglang:eplb_balancedness_sum", "sglang:eplb_balancedness_count"
_NAMED = "sglang:num_running_reqs"
_READER = Reader((_BUCKET, _SUM, _COUNT, _NAMED))
_PHASES: dict[str, Phase] = {"decode": "decode", "target_verify": "decode", "extend": "prefill", "mixed": "mixed"}


class HeatMapReader:
    """Interprets scrapes of SGLang: counts of ranks by the increase of the heat map, else each pass's balance.

    Raises ValueError where the text is no exposition or holds none of the families.
    """

    def __init__(self, model: str = "", ranks: int | None = None) -> None:
        self._model, self._ranks = model, ranks
        self._increases = Increases()
        self._passes: dict[Phase, tuple[float, float]] | None = None

    def __call__(self, text: bytes, now: float) -> list[Event]:
        """Return what came since the scrape before."""
        samples, malformed = _READER.read(text)
        if malformed:
            raise ValueError(f"{malformed} lines are no samples: the page is cut short or broken")
        buckets: dict[int, dict[float, float]] = {}
        passes: dict[Phase, tuple[float, float]] = {}
        model = ""
        for name, labels, value in samples:
            model = model or labels.get("model_name", "")[:MAX_NAME]
            if name == _BUCKET:
                layer, bound = int(labels.get("layer", "")), float(labels.get("le", ""))
                row = buckets.setdefault(layer, {})
                row[bound] = row.get(bound, 0.0) + value
            elif name in (_SUM, _COUNT) and (phase := _PHASES.get(labels.get("forward_mode", ""))):
                total, count = passes.get(phase, (0.0, 0.0))
                passes[phase] = (total + value, count) if name == _SUM else (total, count + value)
        model = model or self._model
        if not buckets and not any(name in (_SUM, _COUNT) for name, _, _ in samples):
            raise ValueError(
                "no sglang:eplb_* family: start SGLang with --enable-metrics and --expert-balancedness-report-mode "
                "prometheus, and set SGLANG_EPLB_HEATMAP_COLLECTION_INTERVAL")
        events: list[Event] = []
        if buckets:
            loads = rank_loads(buckets, model, now)
            if increase := self._increases.of(loads):
                events.append(increase)
        events.extend(self._readings(passes, model, now))
        return events

    def _readings(self, passes: dict[Phase, tuple[float, float]], model: str, now: float) -> Iterator[BalanceReading]:
        before, self._passes = self._passes, passes
        for phase, (total, count) in passes.items() if before is not None else ():
            old_total, old_count = before.get(phase, (0.0, 0.0)) if before is not None else (0.0, 0.0)
            if count < old_count:
                old_total, old_count = 0.0, 0.0
            if count > old_count:
                value = (total - old_total) / (count - old_count)
                if 0 < value <= 1:
                    yield BalanceReading(
                        model, "mean_of_layers", value, now, phase, weight=count - old_count, ranks=self._ranks)


def rank_loads(buckets: dict[int, dict[float, float]], model: str, now: float) -> ExpertLoads:
    """Return the cumulative loads of ranks from ``buckets[layer][le]``. Raises ValueError on another shape."""
    layers = sorted(buckets)
    bounds = sorted(bound for bound in buckets[layers[0]] if math.isfinite(bound))
    ranks = len(bounds)
    if bounds != [float(rank) for rank in range(ranks)] or not 0 < ranks <= MAX_RANKS:
        raise ValueError(f"{_BUCKET}: bounds must be the ranks 0, 1, 2…, are {str(bounds)[:60]}")
    counts = []
    for layer in layers:
        row = buckets[layer]
        if {bound for bound in row if math.isfinite(bound)} != set(bounds):
            raise ValueError(f"{_BUCKET}: layer {layer} has other bounds than layer {layers[0]}")
        edges = [0, *(_whole(row[bound]) for bound in bounds)]
        loads = tuple(above - below for below, above in pairwise(edges))
        if min(loads) < 0:
            raise ValueError(f"{_BUCKET}: buckets of layer {layer} go down")
        counts.append(loads)
    return ExpertLoads(
        model, "rank", tuple(counts), 0.0, now, layers=tuple(layers), ranks_seen=ranks, ranks_expected=ranks)


def _whole(value: float) -> int:
    if not 0 <= value < 2**53:
        raise ValueError(f"{_BUCKET}: {value} is no count")
    return int(value)
