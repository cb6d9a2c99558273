"""Thresholds that follow from the service instead of standing in a rule file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3observe.catalogue.model import Entry, Text
from k3observe.config.values import Duration
from k3observe.facts import Objective
from k3observe.rules.model import Alert


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number and why it is that.

    ``floor`` bounds what a user may set instead, ``refused`` and ``remedy`` say why what is set cannot work, and
    ``objective`` in which field of ``slo`` it stands; ``blind`` and ``fix`` say why the alert is left out, ``wanted``
    that nobody need mend that.
    """

    value: float | None
    reason: Text | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    for_: Duration | None = None
    floor: float | None = None
    refused: str | None = None
    remedy: str = ""
    objective: str = ""
    blind: Text | None = None
    fix: Text | None = None
    wanted: bool = False


def derived_threshold(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """Return the threshold of an alert for a service.

    ``entry`` is where its first signal comes from, ``given`` the threshold that a user sets, ``params`` the parameters
    in force.
    """
    if alert.derive is None:
        return Threshold(alert.threshold)
    return _FUNCTIONS[alert.derive](alert, facts, entry, given, params)


def objective(
    signal: str, facts: Mapping[str, Any], buckets: tuple[float, ...], default: float, given: float | None = None
) -> tuple[Objective, Text | None]:
    """What a latency must be under, and why it is not what was asked for.

    A quantile cannot be told beyond the last finite bucket: the default is cut there, ``given`` and the user's own
    objective are not.
    """
    own: Objective | None = facts[f"slo.{signal}"]
    asked = own or Objective(0.99, default)
    if given is not None:
        return asked._replace(seconds=given), None
    top = buckets[-1] if buckets else default
    if own is None and asked.seconds > top:
        return asked._replace(seconds=top), Text(
            f"{top:g} s is the engine's last finite bucket; beyond it a latency cannot be told",
            f"引擎直方图最后一个有限桶为 {top:g} 秒，超出部分无法区分",
        )
    return asked, None


def _latency(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """The objective of ``slo``, else the default, as long as the engine's buckets can tell it.

    At the last finite bucket a quantile stops growing: there the share of requests above the bucket decides.
    """
    signal = alert.signals[0]
    buckets = entry.buckets if entry is not None else ()
    if not buckets:
        why = Text("the bounds of the engine's buckets are not known", "引擎直方图的桶边界未知")
        return Threshold(None, blind=why)
    found, reason = objective(signal, facts, buckets, alert.threshold or 0.0, given)
    quantile, top, first = found.quantile, buckets[-1], buckets[0]
    own: Objective | None = facts[f"slo.{signal}"]
    field_ = f"{signal}.p{quantile * 100:g}" if own is not None else ""
    share = {"share": round(1 - quantile, 6)} if found.seconds == top else {}
    refused, remedy = None, ""
    if found.seconds > top:
        refused, remedy = f"can never fire: the engine's last finite bucket is {top:g} s", f"use at most {top:g}s"
    elif found.seconds < first:
        refused = f"cannot be told: the engine's first bucket is {first:g} s, and within it a quantile is a guess"
        remedy = f"use at least {first:g}s"
    return Threshold(found.seconds, reason, {"quantile": quantile, **share}, objective=field_, refused=refused,
                     remedy=remedy)  # fmt: skip


def _burn(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """A pace that can be reached: if everything fails, a budget of a tenth burns at 10 times its pace and no faster."""
    budget = max(facts["slo.errors"], 1 - facts["slo.objective"])
    asked = given if given is not None else alert.threshold or 0.0
    if asked * budget < 0.95:
        return Threshold(asked)
    if budget > 0.85:
        wide = "errors" if facts["slo.errors"] == budget else "objective"
        return Threshold(facts[f"slo.{wide}"], objective=wide, refused=f"lets {budget:g} of the requests fail, which "
                         "burns no budget faster than it may", remedy="use at most 0.85" if wide == "errors" else
                         "use at least 0.15")  # fmt: skip
    most = max(1.1, int(8 / budget) / 10)
    if given is not None:
        what = f"can never fire: an objective that lets {budget:g} fail burns at most {1 / budget:.1f} times its budget"
        return Threshold(asked, refused=what, remedy=f"use at most {most:g}")
    why = Text(f"with a budget of {budget:g} all requests fail at {1 / budget:.1f} times its pace",
               f"错误预算为 {budget:g}，全部失败时也只有 {1 / budget:.1f} 倍速度")  # fmt: skip
    return Threshold(most, why)


def _timeout(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """Only where the clients' timeout is known, and a bucket lies exactly there."""
    timeout = params["timeout"]
    if not timeout:
        why = Text("the clients' timeout is not known", "未配置客户端超时时间")
        how = Text("set alerts: {RequestsTimedOut: {params: {timeout: 30}}}",
                   "设置 alerts: {RequestsTimedOut: {params: {timeout: 30}}}")  # fmt: skip
        return Threshold(None, blind=why, fix=how, wanted=True)
    buckets = entry.buckets if entry is not None else ()
    if timeout in buckets or not buckets:
        return Threshold(alert.threshold)
    near = sorted(sorted(buckets, key=lambda bound: abs(bound - timeout))[:2])
    told = " and ".join(f"{bound:g}" for bound in near)
    why = Text(f"the engine's histogram has no bucket at {timeout:g} s, the nearest are {told}",
               f"引擎直方图在 {timeout:g} 秒处没有桶，最近的是 {told.replace(' and ', '、')}")  # fmt: skip
    how = Text(f"add the bucket {timeout:g} to the engine, or use timeout: {near[0]:g}",
               f"在引擎上增加 {timeout:g} 秒的桶，或使用 timeout: {near[0]:g}")  # fmt: skip
    return Threshold(None, blind=why, fix=how)


def _memory(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
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


def _growth(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """Growth counts from where the engine has taken its share, not while it loads."""
    reserved = facts["gpu_memory_utilization"]
    why = Text(f"counts once 95 % of the reserved {reserved:g} are in use", f"占用达到预留 {reserved:g} 的 95% 后才算")
    return Threshold(alert.threshold, why, {"loaded": round(0.95 * reserved, 4)})


def _hot(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """What the configuration says for the product, else the default."""
    hot = facts["hot"]
    if hot is None:
        return Threshold(alert.threshold)
    return Threshold(hot, Text("accelerators.hot of the configuration", "来自配置 accelerators.hot"))


def _queue(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """Half of what an engine runs at once, at least 4."""
    limit = facts["max_num_seqs"] or 8
    known = "max_num_seqs" if facts["max_num_seqs_given"] else "max_num_seqs (assumed)"
    why = Text(f"half of {known} {limit}", f"{known} {limit} 的一半")
    return Threshold(float(max(4, limit // 2)), why)


def _startup(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """No threshold, but a grace for engines that load their model for up to an hour."""
    grace: Duration = facts["startup_grace"]
    return Threshold(alert.threshold, params={"startup_grace": grace.seconds})


def _planned(
    alert: Alert, facts: Mapping[str, Any], entry: Entry | None, given: float | None, params: Mapping[str, float]
) -> Threshold:
    """No threshold: the signals that the service's other alerts need are worked out from those alerts."""
    return Threshold(alert.threshold)


_FUNCTIONS: Mapping[str, Callable[..., Threshold]] = {
    "burn": _burn,
    "growth": _growth,
    "hot": _hot,
    "latency": _latency,
    "memory": _memory,
    "planned": _planned,
    "queue": _queue,
    "startup": _startup,
    "timeout": _timeout,
}
