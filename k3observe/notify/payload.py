"""Alertmanager's webhook body (version 4) as immutable values, bounded in every direction."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

MAX_BYTES = 1 << 20
MAX_ALERTS = 200
"""Alerts kept of one notification or message: more than any platform can show; the rest is counted."""
MAX_LABELS = 64
MAX_TEXT = 1024

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SEVERITIES = ("critical", "warning", "info")


class PayloadError(ValueError):
    """The body is not what Alertmanager sends; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a notification; times are aware, ``ended`` is None while it fires."""

    firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    started: datetime | None
    ended: datetime | None
    fingerprint: str

    @property
    def name(self) -> str:
        """The alert's name, or a dash where the label is missing."""
        return self.labels.get("alertname") or "-"

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Order of importance: firing before resolved, critical first, then by name."""
        severity = self.labels.get("severity", "")
        position = _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
        return (not self.firing, position, self.name)


@dataclass(frozen=True, slots=True)
class Notification:
    """What Alertmanager sent at once; ``omitted`` alerts were left out, by Alertmanager's ``max_alerts`` or by us."""

    alerts: tuple[Alert, ...]
    omitted: int


def parse(body: bytes) -> Notification:
    """Read a webhook body; raises PayloadError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PayloadError("the body is no JSON: send Alertmanager's webhook here") from None
    if not isinstance(document, dict):
        raise PayloadError("the body is no JSON object: send Alertmanager's webhook here")
    if document.get("version") != "4":
        raise PayloadError('the field "version" is not "4": use a webhook_config of Alertmanager 0.6 or newer')
    alerts = document.get("alerts")
    if not isinstance(alerts, list) or not alerts:
        raise PayloadError('the field "alerts" is no list of at least one alert')
    parsed = sorted((_alert(alert) for alert in alerts), key=lambda alert: alert.rank)
    truncated = document.get("truncatedAlerts", 0)
    if not isinstance(truncated, int) or not 0 <= truncated <= 1_000_000:
        truncated = 0
    return Notification(tuple(parsed[:MAX_ALERTS]), truncated + max(0, len(parsed) - MAX_ALERTS))


def clean(text: str, limit: int = MAX_TEXT, lines: bool = False) -> str:
    """Drop control, surrogate and direction-changing characters and cut to ``limit`` characters.

    Such characters would break the platform's JSON or make a text read differently from what it says.
    """
    kept = "".join(
        " " if character in "\r\n\t" and not (lines and character == "\n") else character
        for character in text[: 4 * limit]
        if character in "\r\n\t" or (character not in _BIDI and unicodedata.category(character) not in ("Cc", "Cs"))
    ).strip()
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def _alert(value: Any) -> Alert:
    if not isinstance(value, dict):
        raise PayloadError('an entry of "alerts" is no object')
    status = value.get("status")
    if status not in ("firing", "resolved"):
        raise PayloadError('the "status" of an alert is neither "firing" nor "resolved"')
    fingerprint = value.get("fingerprint")
    ended = _time(value.get("endsAt"))
    return Alert(
        firing=status == "firing",
        labels=_texts(value.get("labels"), "labels"),
        annotations=_texts(value.get("annotations"), "annotations"),
        started=_time(value.get("startsAt")),
        ended=ended if status == "resolved" else None,
        fingerprint=clean(fingerprint, 64) if isinstance(fingerprint, str) else "",
    )


def _texts(value: Any, field: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise PayloadError(f'the "{field}" of an alert are no object of strings')
    return {clean(name, 128): clean(text, lines=True) for name, text in list(value.items())[:MAX_LABELS]}


def _time(value: Any) -> datetime | None:
    """Read Go's RFC 3339 time; its zero time (year 1) and anything out of range is None."""
    match = _TIME.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
    if not match:
        return None
    try:
        moment = datetime.fromisoformat(match[1] + ("+00:00" if match[2] == "Z" else match[2]))
        utc = moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
    # a day of room on both sides, for whichever zone it is shown in
    return utc if datetime(1970, 1, 2, tzinfo=timezone.utc) < utc < _LAST else None


_LAST = datetime(9999, 12, 31, tzinfo=timezone.utc) - timedelta(days=1)
