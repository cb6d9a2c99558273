"""Which alert watches which service, with which numbers; or why it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from k3observe.catalogue.model import Text
from k3observe.config.errors import Path, Problem
from k3observe.config.model import AlertSettings, Service
from k3observe.config.values import Duration
from k3observe.expert_source import Lack
from k3observe.facts import ASCEND_ENGINES
from k3observe.rules import Alert
from k3observe.thresholds import Threshold, derived_threshold

if TYPE_CHECKING:
    from k3observe.plan import Plan

_ALWAYS_THERE = frozenset({"engine_up", "exporter_up", "engines", "replicas_expected"})
_BY_PART = frozenset({"accelerator_health", "accelerator_link_up", "accelerator_throttled"})
"""Signals that not every product has: a card without NVLink has no links."""


@dataclass(frozen=True, slots=True)
class Settings:
    """An alert's numbers for a service, from the shipped rule, the stack and the service, in this order."""

    threshold: float | None
    for_: Duration
    keep_firing_for: Duration | None
    window: Duration | None
    severity: str
    params: tuple[tuple[str, float], ...] = ()
    codes: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, Any], ...] = ()
    uses: frozenset[str] = frozenset()
    """Signals the alert takes when they are there, and they are."""
    reason: Text | None = None


@dataclass(frozen=True, slots=True)
class Armed:
    """An alert that watches a service."""

    alert: Alert
    service: Service
    settings: Settings


@dataclass(frozen=True, slots=True)
class Blind:
    """An alert that cannot watch a service, or was switched off; ``fix`` is the one change that arms it."""

    alert: Alert
    service: Service
    reason: Text
    fix: Text | None = None
    wanted: bool = False
    """Whether the user switched it off, or the service's role makes it pointless: nothing to mend."""


def arm(plan: Plan) -> tuple[tuple[Armed, ...], tuple[Blind, ...], list[Problem]]:
    """Arm every alert of the pack for every service; problems are thresholds that can never or will always fire."""
    problems: dict[Problem, None] = {}
    outcomes: list[Armed | Blind] = []
    watched: dict[str, list[Armed]] = {service: [] for service in plan.services}
    # what looks for missing signals has to know which signals the others need
    alerts = sorted(plan.pack.alerts.values(), key=lambda alert: alert.derive == "planned")
    for alert in alerts:
        for index, service in enumerate(plan.config.services):
            outcome = _arm(plan, alert, service, index, watched[service.name], problems)
            outcomes.append(outcome)
            if isinstance(outcome, Armed):
                watched[service.name].append(outcome)
    armed = tuple(item for item in outcomes if isinstance(item, Armed))
    return armed, tuple(item for item in outcomes if isinstance(item, Blind)), list(problems)


def meets(actual: Any, wanted: Any) -> bool:
    """Whether a fact is as wanted: ``true`` is anything but nothing, a list is any of its items."""
    if isinstance(wanted, list | tuple):
        return actual in wanted
    if isinstance(actual, frozenset):
        return wanted in actual
    if wanted is True:
        return bool(actual)
    return bool(actual == wanted)


def _arm(
    plan: Plan, alert: Alert, service: Service, index: int, watched: list[Armed], problems: dict[Problem, None]
) -> Armed | Blind:
    stack = plan.config.alerts.get(alert.name, AlertSettings())
    own = service.alerts.get(alert.name, AlertSettings())
    enabled = own.enabled if own.enabled is not None else stack.enabled
    if enabled is False:
        return Blind(alert, service, Text("switched off in the configuration", "已在配置中关闭"), wanted=True)
    known = plan.facts[service.name]
    if service.role not in alert.suits.roles:
        return Blind(
            alert, service,
            Text(f"means nothing for the role {service.role}", f"对角色 {service.role} 没有意义"),
            wanted=True)  # fmt: skip
    ascend = known["accelerator"] == "ascend" or service.engine.name in ASCEND_ENGINES
    if alert.suits.accelerators == ("nvidia" if ascend else "ascend"):
        what = Text("does not apply to Ascend", "不适用于昇腾") if ascend else Text(
            "does not apply to NVIDIA", "不适用于 NVIDIA")  # fmt: skip
        return Blind(alert, service, what, wanted=True)
    for fact, value in alert.suits.when.items():
        if not meets(known.get(fact), value):
            actual = known.get(fact)
            if isinstance(actual, Lack):
                return Blind(alert, service, actual.reason, actual.fix)
            reason = alert.suits.reason or Text(f"{fact} is {actual}", f"{fact} 为 {actual}")
            return Blind(alert, service, reason, alert.suits.fix_of.get(service.engine.name, alert.suits.fix))
    given = own.threshold if own.threshold is not None else stack.threshold
    params = {**alert.params, **stack.params, **own.params}
    entry = plan.entry(service.name, alert.signals[0]) if alert.signals else None
    threshold = derived_threshold(alert, known, entry, given, params)
    if alert.warned_by is not None:
        threshold = _not_before(plan, plan.pack.alerts[alert.warned_by], service, threshold, given)
    # what is left out for want of a number is not mended by a signal
    gap = None if threshold.wanted else next(
        (gap for signal in alert.signals if (gap := plan.why_not(service.name, signal))), None)  # fmt: skip
    if gap is not None:
        return Blind(alert, service, gap.reason, gap.fix)
    if threshold.blind is not None:
        return Blind(alert, service, threshold.blind, threshold.fix, threshold.wanted)
    uses = frozenset(signal for signal in alert.uses if plan.has(service.name, signal))
    if alert.derive == "planned":
        uses = frozenset(_planned(plan, service, watched))
        if not uses:
            alone = Text(
                "no alert of the service needs more than its targets", "该服务的告警除采集目标外不需要其他信号")
            return Blind(alert, service, alone, wanted=True)
    settings = _settings(alert, threshold, stack, own, known, uses, 4 * plan.config.prometheus.slowest)
    if threshold.objective and given is None:
        path: Path = ("services", index, "slo", threshold.objective)
    else:
        level: Path = ("services", index) if own.threshold is not None else ()
        path = (*level, "alerts", alert.name, "threshold")
    problems.update(dict.fromkeys(_problems(alert, settings, threshold, path)))
    window = settings.window.seconds if settings.window and alert.codes else None
    if window is not None and settings.for_.seconds > window / 2:
        level = ("services", index) if own.for_ is not None else ()
        problem = Problem(f"outlasts half the window of {settings.window}, in which an event is seen: it might never "
                          "fire", (*level, "alerts", alert.name, "for"), str(settings.for_),
                          f"use at most {Duration.of(window / 2)}, or a longer window")  # fmt: skip
        problems[problem] = None
    if alert.codes_of is not None and own.codes is None and stack.codes is None:
        levels = (service.alerts, plan.config.alerts)
        theirs = (level[alert.codes_of].codes for level in levels if alert.codes_of in level)
        settings = replace(settings, codes=tuple(next((codes for codes in theirs if codes), alert.codes)))
    return Armed(alert, service, settings)


def _not_before(plan: Plan, warning: Alert, service: Service, threshold: Threshold, given: float | None) -> Threshold:
    """A critical alert follows the warning of the same quantity; one that is set to come before it is refused."""
    stack = plan.config.alerts.get(warning.name, AlertSettings())
    own = service.alerts.get(warning.name, AlertSettings())
    set_ = own.threshold if own.threshold is not None else stack.threshold
    limit = set_ if set_ is not None else warning.threshold
    value = given if given is not None else threshold.value
    if False in (own.enabled, stack.enabled if own.enabled is None else None) or limit is None or value is None:
        return threshold
    if value >= limit or (set_ is None and given is None):
        return threshold
    if given is not None:
        return replace(threshold, refused=f"comes before its warning, {warning.name} at {limit:g}",
                       remedy=f"use at least {limit:g}, or leave it out to follow {warning.name}")  # fmt: skip
    return replace(threshold, value=limit, reason=Text(
        f"the threshold of its warning, {warning.name}", f"与其预警 {warning.name} 的阈值相同"))


def _planned(plan: Plan, service: Service, watched: Iterable[Armed]) -> Iterator[str]:
    """Signals without which some alert of the service is blind, and which are there whether or not anything happens.

    Not those that appear with the first event or that not every product has, and not those of experts, which have no
    reading while nothing is served.
    """
    pending = [signal for armed in watched for signal in armed.alert.signals]
    seen: set[str] = set()
    while pending:
        signal = pending.pop()
        if signal in seen:
            continue
        seen.add(signal)
        if plan.derives(service.name, signal):
            pending += plan.pack.derived[signal].needs
            continue
        entry = plan.entry(service.name, signal)
        steady = entry is not None and not entry.lazy and signal not in _ALWAYS_THERE | _BY_PART
        if steady and not signal.startswith("expert"):
            yield signal


def _settings(
    alert: Alert, threshold: Threshold, stack: AlertSettings, service: AlertSettings, known: Mapping[str, Any],
    uses: frozenset[str], least_window: float,
) -> Settings:  # fmt: skip
    def pick(name: str, default: Any) -> Any:
        values = [getattr(level, name) for level in (service, stack)]
        return next((value for value in values if value is not None), default)

    return Settings(
        threshold=pick("threshold", threshold.value),
        for_=pick("for_", threshold.for_ or alert.for_),
        keep_firing_for=pick("keep_firing_for", alert.keep_firing_for),
        window=pick("window", alert.window and Duration.of(max(alert.window.seconds, least_window))),
        severity=pick("severity", alert.severity),
        params=tuple(sorted({**alert.params, **threshold.params, **stack.params, **service.params}.items())),
        codes=tuple(pick("codes", alert.codes)),
        labels=tuple(sorted({**stack.labels, **service.labels}.items())),
        annotations=tuple(sorted({**stack.annotations, **service.annotations}.items())),
        facts=tuple((name, known.get(name)) for name in alert.facts),
        uses=uses,
        reason=threshold.reason,
    )


def _problems(alert: Alert, settings: Settings, threshold: Threshold, path: Path) -> Iterator[Problem]:
    value, above, below = settings.threshold, alert.bounds.above, alert.bounds.below
    if threshold.refused is not None:
        yield Problem(threshold.refused, path, value, threshold.remedy)
        return
    if value is None or (value == threshold.value and threshold.reason):
        return
    if threshold.floor is not None and value <= threshold.floor:
        best = f", or leave it out: {threshold.value:g}" if threshold.value is not None else ", or leave it out"
        yield Problem(f"fires always: the engine itself reserves {threshold.floor:g}", path, value,
                      f"use more than {threshold.floor:g}{best}")  # fmt: skip
    elif above is not None and value <= above:
        yield Problem(f"must be above {above:g}, else it fires always or never", path, value)
    elif below is not None and value >= below:
        yield Problem(f"must be below {below:g}, else it fires always or never", path, value)
