"""What stands in a rule file.

Expressions and texts are Jinja2 with the delimiters ``<< >>`` and ``<% %>``, which occur in neither PromQL nor the Go
templates of Prometheus. An expression sees ``sel`` (matchers of the services it is for), ``by`` (labels it keeps),
``threshold``, ``window``, ``params``, the facts of the service (``facts.max_num_seqs``) and ``intervals``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from k3observe.catalogue.model import Text
from k3observe.config.values import Duration, LabelName, MetricName, Name, Quantity

Unit = Literal["percent", "ratio", "seconds", "count", "rate", "celsius", "bytes", "times"]
Severity = Literal["critical", "warning", "info", "none"]
Action = Literal["scale_out", "rebalance", "replace_device", "restart_engine", "investigate"]


_LABEL = re.compile(r"\$labels\.(\w+)")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


_WIDE = "\u3000-\u303f\u4e00-\u9fff\uff00-\uffef"
_BREAK = re.compile(rf"(?<=[{_WIDE}]) (?=[{_WIDE}])")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _text(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if not isinstance(value, dict) or set(value) != {"en", "zh-CN"} or not all(map(_is_text, value.values())):
        raise ValueError("needs the text in both languages: en: … and zh-CN: …")
    # a folded line of the file leaves a blank, which Chinese does not write between its characters
    return Text(value["en"], _BREAK.sub("", value["zh-CN"]))


Both = Annotated[Text, PlainValidator(_text)]


class Suits(_Part):
    """Services the alert is for; others are left out with the reason."""

    roles: frozenset[Literal["unified", "prefill", "decode"]] = frozenset({"unified", "prefill", "decode"})
    accelerators: Literal["nvidia", "ascend"] | None = Field(None, description="Kind of devices it means anything for")
    when: Mapping[str, Any] = {}
    reason: Both | None = None
    fix: Both | None = None
    fix_of: Mapping[str, Both] = Field({}, description="Engine to its own fix, instead of that for all")


class Bounds(_Part):
    """A threshold outside can never, or will always, fire."""

    above: float | None = None
    below: float | None = None


class Input(_Part):
    """A signal's values in a test: ``[value, minutes]`` steps; a counter's values are rates per second.

    A value is a number or an expression over ``threshold`` and ``params``; ``absent`` leaves samples out. ``labels``
    tells one series of the signal from another (``engine: "1"``).
    """

    signal: Name
    values: list[tuple[float | str, float | str]]
    labels: Mapping[str, str] = {}
    start: float = Field(0.0, description="Value of a counter in its first sample")
    rate: float | str = Field(1.0, description="Observations a second of a histogram")
    each: Literal["replica", "signal"] | None = Field(
        None, description="replica: such a series for every expected replica; signal: for every planned signal")


class Expected(_Part):
    """An alert that must be firing: the value its annotation shows, and labels that differ from the first input's."""

    value: float | str
    labels: Mapping[str, str] = {}
    each: Literal["signal"] | None = Field(None, description="signal: one for every planned signal")
    bare: bool = Field(False, description="Of a recorded series: it has no identity labels, no target being known")


class Case(_Part):
    """One proof: what comes in, and what fires ``at`` minutes after the start."""

    case: str
    when: str = Field("", description="Only where this holds, e.g. threshold is none")
    input: list[Input] = []
    at: list[float | str] = Field(min_length=1)
    fires: list[Expected] = []
    quiet: list[float | str] = Field([], description="Minutes at which nothing fires, in a case that fires at others")
    variants: bool = Field(False, description="Repeat with the other spelling of the engine's metric names")


class Alert(_Part):
    """One alert."""

    name: Name = Field(alias="alert")
    title: Both
    signals: list[Name] = Field(description="Signals without which it is blind")
    uses: list[Name] = Field([], description="Signals it takes when they are there")
    suits: Suits = Suits()
    severity: Severity
    action: Action = "investigate"
    for_: Duration = Field(Duration("5m"), alias="for")
    keep_firing_for: Duration | None = None
    window: Duration | None = None
    threshold: Quantity | None = None
    derive: str | None = Field(None, description="Function of the plan that works the threshold out from the service")
    warned_by: Name | None = Field(None, description="Warning of the same quantity; the threshold is never below its")
    bounds: Bounds = Bounds()
    unit: Unit = "count"
    value_unit: Unit | None = None
    params: Mapping[str, Quantity] = {}
    codes: list[int] = Field([], description="Error codes that count")
    codes_of: Name | None = Field(None, description="Alert whose codes it has, unless its own are set")
    facts: list[str] = Field([], description="Facts of the service that the expression uses")
    keep: list[LabelName] = Field([], description="Labels kept beyond stack, service and the identity labels")
    expr: str
    summary: Both
    description: Both
    dashboard: Name = "overview"
    panel: Name | None = None
    runbook: Both
    tests: list[Case] = []
    tests_every: Duration | None = Field(None, description="Time between samples in tests that last for hours")

    @model_validator(mode="after")
    def _proved(self) -> Alert:
        if not self.tests:
            raise ValueError("an alert without a test is no alert; add tests:")
        return self

    @model_validator(mode="after")
    def _texts_name_labels_that_are_kept(self) -> Alert:
        kept = {"stack", "service", *self.keep}
        for text in (self.summary, self.description):
            for language in ("en", "zh-CN"):
                lost = sorted(set(_LABEL.findall(text.get(language))) - kept)
                if lost:
                    raise ValueError(f"a text names the label {lost[0]!r}, which the expression drops; add it to keep:")
        return self


class Derived(_Part):
    """A series computed from other signals, recorded beside them."""

    signal: Name
    record: MetricName
    needs: list[Name]
    uses: list[Name] = []
    any: list[Name] = Field([], description="Signals of which one at least must be there")
    when: Mapping[str, Any] = Field({}, description="Facts of the services for which it is derived, not read")
    domain: Literal["slo", "budget"] | None = Field(None, description="Where it is recorded; default: with its needs")
    per: Literal["stack", "service"] = Field("stack", description="service: one rule a service, from its facts")
    expr: str
    tests: list[Case] = Field(min_length=1, description="Cases in which the series has the values of ``fires``")


class Group(_Part):
    """A file: alerts, and series derived for them."""

    group: Name
    title: Both
    derived: list[Derived] = []
    alerts: list[Alert] = []


class Pack(_Part):
    """All groups, in order."""

    groups: tuple[Group, ...]

    @cached_property
    def alerts(self) -> dict[str, Alert]:
        """Alerts by name."""
        return {alert.name: alert for group in self.groups for alert in group.alerts}

    @cached_property
    def derived(self) -> dict[str, Derived]:
        """Derived series by signal."""
        return {item.signal: item for group in self.groups for item in group.derived}
