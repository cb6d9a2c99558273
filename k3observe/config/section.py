"""What all parts of the configuration have in common, and the words several of them use."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Severity = Literal["critical", "warning", "info", "none"]
Route = Literal[
    "scale_out", "rebalance", "replace_device", "restart_engine", "investigate", "critical", "warning", "info"
]


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)
