"""From notifications to one message that no platform owns yet: what is said, in which order, to whom."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from urllib.parse import quote, urlsplit

from k3observe.notify.payload import MAX_ALERTS, Alert, Notification, clean
from k3observe.notify.texts import WORDS, Words

MAX_MENTIONS = 20
MAX_LINK = 700
"""Longest link in bytes; two of them and the shortest form of an alert fit into WeCom's 4,096 bytes."""
EVERYBODY = "all"

_TITLE, _SUMMARY, _DESCRIPTION, _VALUE = 120, 160, 500, 40
_LABELS = 8
_SHOWN_APART = frozenset({"alertname", "severity", "action"})
_BARE = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.I)


@dataclass(frozen=True, slots=True)
class Mention:
    """Whom a robot mentions while an alert of one of ``severities`` (empty: any) fires.

    ``users`` always; and the owner that the alert's ``label`` names: through ``owners`` where that is given, else
    the label's value is the platform's own id. "all" is only ever taken from the configuration.
    """

    users: tuple[str, ...] = ()
    label: str = ""
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    severities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Item:
    """One alert, worded. ``times`` is one line; links are safe http(s) URLs or empty."""

    firing: bool
    severity: str
    summary: str
    description: tuple[str, ...]
    value: str
    labels: str
    times: str
    runbook: str
    dashboard: str


@dataclass(frozen=True, slots=True)
class Message:
    """What to say. ``severity`` is the worst one that fires, else empty: the message is all good news."""

    title: str
    severity: str
    firing: bool
    head: tuple[str, ...]
    items: tuple[Item, ...]
    omitted: int
    mentions: tuple[str, ...]
    words: Words

    def bare(self) -> Message:
        """The message without what its alerts say, for a platform that refuses their text."""
        line = self.words.bare.format(n=len(self.items) + self.omitted)
        return replace(self, title=self.words.title.format(status="K3", names="k3observe"), head=(line,), items=(),
                       omitted=0)  # fmt: skip


def compose(
    notifications: Sequence[Notification],
    language: str,
    zone: tzinfo,
    mention: Mention,
    accepts: Callable[[str], bool],
) -> Message:
    """Make one message of one or more notifications; of an alert told twice the later state stands.

    ``accepts`` says whether a label's value can be a user's id on the platform.
    """
    words = WORDS[language]
    latest: dict[object, Alert] = {}
    for notification in notifications:
        for alert in notification.alerts:
            latest[alert.fingerprint or tuple(sorted(alert.labels.items()))] = alert
    alerts = sorted(latest.values(), key=lambda alert: alert.rank)
    firing = [alert for alert in alerts if alert.firing]
    common = _common(alerts)
    head = [_line(common, alerts, words)]
    if len(notifications) > 1:
        head.append(words.merged.format(n=len(notifications)))
    return Message(
        title=_title(alerts, len(firing), common, words),
        severity=firing[0].labels.get("severity", "") if firing else "",
        firing=bool(firing),
        head=tuple(line for line in head if line),
        items=tuple(_item(alert, common if len(alerts) > 1 else {}, zone, words) for alert in alerts[:MAX_ALERTS]),
        omitted=sum(notification.omitted for notification in notifications) + max(0, len(alerts) - MAX_ALERTS),
        mentions=_mentions(firing, mention, accepts),
        words=words,
    )


def _common(alerts: Sequence[Alert]) -> dict[str, str]:
    first, *rest = alerts
    return {name: value for name, value in first.labels.items() if all(a.labels.get(name) == value for a in rest)}


def _title(alerts: Sequence[Alert], firing: int, common: Mapping[str, str], words: Words) -> str:
    counts = ((words.firing, firing), (words.resolved, len(alerts) - firing))
    status = words.both.join(pattern.format(n=count) for pattern, count in counts if count)
    names = list(dict.fromkeys(clean(alert.name, 60) for alert in alerts))
    shown = ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")
    subject = common.get("service") or common.get("stack")
    return clean(words.title.format(status=status, names=f"{shown} · {subject}" if subject else shown), _TITLE)


def _line(common: Mapping[str, str], alerts: Sequence[Alert], words: Words) -> str:
    parts = []
    for name, word, known in (("severity", words.severity, words.severities), ("action", words.action, words.actions)):
        if value := common.get(name):
            parts.append(f"{word}{words.colon}{known.get(value) or clean(value, _VALUE)}")
    if labels := _spell(common) if len(alerts) > 1 else "":
        parts.append(f"{words.labels}{words.colon}{labels}")
    return " | ".join(parts)


def _item(alert: Alert, common: Mapping[str, str], zone: tzinfo, words: Words) -> Item:
    notes = alert.annotations
    own = {name: value for name, value in alert.labels.items() if name not in common}
    differing = [
        known.get(own[name]) or clean(own[name], _VALUE)
        for name, known in (("severity", words.severities), ("action", words.actions))
        if common and own.get(name)
    ]
    summary = clean(notes.get("summary") or alert.name, _SUMMARY)
    value = clean(notes.get("value", ""), _VALUE)
    threshold = clean(notes.get("threshold", ""), _VALUE)
    if not threshold and _BARE.fullmatch(value):
        value = ""  # without unit and threshold a number says nothing: the 0 of what is down, the 1 of a watchdog
    values = [f"{words.value}{words.colon}{value}"] if value else []
    values += [f"{words.threshold}{words.colon}{threshold}"] if threshold else []
    labels = _spell(own)
    description = clean(notes.get("description", ""), _DESCRIPTION, lines=True)
    return Item(
        firing=alert.firing,
        severity=alert.labels.get("severity", ""),
        summary=summary + (words.aside.format(words.comma.join(differing)) if differing else ""),
        description=tuple(line.strip() for line in description.split("\n") if line.strip()),
        value=words.comma.join(values),
        labels=f"{words.labels}{words.colon}{labels}" if labels else "",
        times=_times(alert, zone, words),
        runbook=link(notes.get("runbook_url", "")),
        dashboard=link(notes.get("dashboard_url", "")),
    )


def _spell(labels: Mapping[str, str]) -> str:
    shown = [(name, value) for name, value in sorted(labels.items()) if name not in _SHOWN_APART and value]
    text = ", ".join(f"{clean(name, _VALUE)}={clean(value, 80)}" for name, value in shown[:_LABELS])
    return text + (", …" if len(shown) > _LABELS else "")


def _times(alert: Alert, zone: tzinfo, words: Words) -> str:
    if alert.started is None:
        return ""
    text = f"{words.since}{words.colon}{_clock(alert.started, zone)}"
    if alert.ended is None or alert.ended < alert.started:
        return text
    return (
        f"{text}{words.comma}{words.ended}{words.colon}{_clock(alert.ended, zone)}"
        f"{words.comma}{words.lasted} {_spell_duration(alert.ended - alert.started)}"
    )


def _clock(moment: datetime, zone: tzinfo) -> str:
    text = moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %z")
    return f"{text[:-2]}:{text[-2:]}"


def _spell_duration(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def link(url: str) -> str:
    """Make an annotation's URL safe inside a Markdown link; empty when it is no http(s) URL or too long."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
            return ""
    except ValueError:
        return ""
    safe = quote(url, safe="%/:?#@!$&'*+,;=~-._")
    return safe if len(safe) <= MAX_LINK else ""


def _mentions(firing: Sequence[Alert], mention: Mention, accepts: Callable[[str], bool]) -> tuple[str, ...]:
    loud = [a for a in firing if not mention.severities or a.labels.get("severity") in mention.severities]
    if not loud:
        return ()
    found: list[str] = list(mention.users)
    for alert in loud:
        found += _owners(alert.labels.get(mention.label, ""), mention.owners, accepts)
    return tuple(dict.fromkeys(found))[:MAX_MENTIONS]


def _owners(owner: str, owners: Mapping[str, tuple[str, ...]], accepts: Callable[[str], bool]) -> Iterable[str]:
    if owners or not owner:
        return owners.get(owner, ())
    return (owner,) if owner != EVERYBODY and accepts(owner) else ()
