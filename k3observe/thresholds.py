"""Thresholds that follow from the service instead of standing in a rule file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3observe.catalogue.model import Entry, Text
from k3observe.config.values import Duration
from k3observe.rules.model import Alert


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number and why it is that; ``floor`` and ``ceiling`` bound what a user may set instead."""

    value: float | None
    reason: Text | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    for_: Duration | None = None
    floor: float | None = None
    ceiling: float | None = None


def derived_threshold(alert: Alert, facts: Mapping[str, Any], entry: Entry | None) -> Threshold:
    """Return the threshold of an alert for a service; ``entry`` is where its first signal comes from."""
    if alert.derive is None:
        return Threshold(alert.threshold)
    return _FUNCTIONS[alert.derive](alert, facts, entry)


def _memory(alert: Alert, facts: Mapping[str, Any], entry: Entry | None) -> Threshold:
    """Above the engine's reservation: a fixed 0.92 fires for ever where the engine reserves 0.92.

    SGLang takes more than its static fraction and MindIE nearly all, so that 0.97 is the least that means anything
    there. Above a reservation of 0.95 no share is left to tell them apart, and free memory decides.
    """
    reserved = facts["gpu_memory_utilization"]
    if reserved is None:
        return Threshold(alert.threshold)
    if facts["engine"] in ("sglang", "mindie"):
        value = max(0.97, reserved + (1 - reserved) / 2)
        name = facts["engine"]
        why = Text(f"{name} takes nearly all memory by itself", f"{name} 本身就会占用几乎全部显存")
        return Threshold(round(value, 4), why, floor=reserved)
    if reserved > 0.95:
        why = Text(
            f"the engine reserves {reserved:g}, which leaves no share to judge by: free memory decides",
            f"引擎预留 {reserved:g}，使用率已无判断余地，改看空闲显存",
        )
        return Threshold(None, why, floor=reserved)
    base = alert.threshold or 0.0
    value = max(base, reserved + min(0.03, (1 - reserved) / 2))
    why = Text(f"the engine reserves {reserved:g}", f"引擎预留 {reserved:g}")
    return Threshold(round(value, 4), why if value > base else None, floor=reserved)


def _queue(alert: Alert, facts: Mapping[str, Any], entry: Entry | None) -> Threshold:
    """Half of what an engine runs at once, at least 4."""
    limit = facts["max_num_seqs"] or 8
    given = "max_num_seqs" if facts["max_num_seqs_given"] else "max_num_seqs (assumed)"
    why = Text(f"half of {given} {limit}", f"{given} {limit} 的一半")
    return Threshold(float(max(4, limit // 2)), why)


def _startup(alert: Alert, facts: Mapping[str, Any], entry: Entry | None) -> Threshold:
    """No threshold, but a grace for engines that load their model for up to an hour."""
    grace: Duration = facts["startup_grace"]
    return Threshold(alert.threshold, params={"startup_grace": grace.seconds})


_FUNCTIONS: Mapping[str, Callable[[Alert, Mapping[str, Any], Entry | None], Threshold]] = {
    "memory": _memory,
    "queue": _queue,
    "startup": _startup,
}
