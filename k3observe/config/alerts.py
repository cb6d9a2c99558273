"""What the user changes of an alert."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from k3observe.config.section import Section, Severity
from k3observe.config.values import Duration, LabelName, LabelValue, Name, Quantity, Wording


class AlertSettings(Section):
    """What differs from the shipped alert."""

    enabled: bool | None = Field(None, description="false switches it off")
    threshold: Quantity | None = Field(None, description="The limit; its unit is that of the alert's signal")
    for_: Duration | None = Field(None, alias="for", description="How long the condition holds before it fires")
    keep_firing_for: Duration | None = Field(None, description="How long it fires on after the condition ended")
    window: Duration | None = Field(None, description="Span of the rates and means in its expression")
    severity: Severity | None = Field(None, description="none: no receiver of a severity gets it")
    params: dict[Name, Quantity] = Field({}, description="Further numbers of the alert, e.g. {worst: 1.0}")
    codes: list[Annotated[int, Field(ge=0, le=100_000)]] | None = Field(
        None, min_length=1, max_length=100, description="Error codes (XID) that count")
    labels: dict[LabelName, LabelValue] = Field({}, description="Extra labels, for your own routing")
    annotations: dict[LabelName, Wording] = Field(
        {}, description="Extra annotations, or other texts for the shipped ones")
