"""Holds what is served against what was true."""

from __future__ import annotations

import time

from soaking.exposition import Samples
from soaking.world import Truth

WINDOW = 10.0
"""Seconds of expert loads that the sidecars average over."""


class Judge:
    """Holds what is served against the truth."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.held = 0
        self.wrong: list[str] = []

    def devices(self, samples: Samples) -> None:
        """By uuid: the places of GPUs change when one is lost."""
        read_at = {dict(labels)["uuid"]: value for (name, labels), value in samples.items()
                   if name == "k3_accelerator_last_read_timestamp_seconds"}  # fmt: skip
        for (name, labels), value in samples.items():
            if name == "k3_accelerator_memory_used_bytes":
                known = dict(labels)
                gpu = known["vendor"] == "nvidia"
                thing = known["uuid"] if gpu else f"npu {known['device'].split('-')[0]}"
                self._one_of(thing, value, read_at[known["uuid"]] - 8, read_at[known["uuid"]] + 1)

    def rest(self, samples: Samples, now: float) -> None:
        read_at = {dict(labels)["collector"]: value for (name, labels), value in samples.items()
                   if name == "k3_source_last_success_timestamp_seconds"}  # fmt: skip
        for (name, labels), value in samples.items():
            known = dict(labels)
            if name == "k3_accelerators_visible" and known["vendor"] == "nvidia":
                self._one_of("cards", value, read_at["gpu"] - 8, read_at["gpu"] + 1)
            elif name == "k3_kv_cache_usage_ratio":
                self._one_of("usage", value, read_at["kv-cache"] - 5, read_at["kv-cache"] + 1)
            elif name == "k3_kv_cache_hits_total":
                queries = sum(v for (n, _), v in samples.items() if n == "k3_kv_cache_queries_total")
                self._say(abs(value - 0.9 * queries) <= 0.001 * queries + 1, f"{value} hits of {queries} queries")
            elif name == "k3_expert_balance_ratio" and known["scope"] == "expert":
                ranks = next(v for (n, other), v in samples.items() if n == name and ("scope", "rank") in other)
                self._say(0 < value <= ranks, f"balance of experts {value}, of their ranks {ranks}")
            elif name == "k3_expert_balance_ratio" and known["formula"] == "mean_of_layers":
                factors = self._truth.between("factor", now - WINDOW - 8, now)
                self._say(1 / max(factors) - 0.03 <= value <= 1.0, f"balance {value} with factors {set(factors)}")
            elif name == "k3_expert_balance_ratio":
                values = self._truth.between("log", now - WINDOW - 8, now)
                self._say(min(values) - 1e-3 <= value <= max(values) + 1e-3, f"balance {value} of {values}")
            elif name == "k3observe_exporter_collect_errors_total":
                self._say(value == 0, f"collector {known['collector']} raised {value:g} times")

    def _one_of(self, thing: str, value: float, start: float, end: float) -> None:
        values = self._truth.between(thing, start, end)
        self._say(any(abs(value - true) <= abs(true) * 1e-9 for true in values), f"{thing}: {value!r}, not of {values}")

    def _say(self, right: bool, what: str) -> None:
        self.held += 1
        if not right:
            self.wrong.append(f"{time.strftime('%H:%M:%S')} {what}")
