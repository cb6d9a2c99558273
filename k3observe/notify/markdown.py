"""A message in a platform's Markdown, cut to the platform's limit alert by alert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3observe.notify.message import Item, Message

_RESOLVED, _OTHER = "🟢", "🟠"
_ICONS = {"critical": "🔴", "warning": "🟠", "info": "🔵"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a platform spells Markdown; every function takes and returns text."""

    escape: Callable[[str], str]
    strong: Callable[[str], str]
    mention: Callable[[str], str]
    state: Callable[[str, bool], str]
    """Colour a word that says whether the alert fires (True) or is resolved."""
    line: str
    """What ends a line inside a paragraph."""
    heading: bool
    """Whether the title stands in the text (a card has a header of its own)."""


def fit(message: Message, dialect: Dialect, fits: Callable[[str], bool]) -> str:
    """Write as many alerts in full as fit, else as many in short; the rest becomes "and N more".

    The short form of a single alert fits every platform's limit, by the bounds of its parts.
    """
    total = len(message.items)
    for short in (False, True):
        low, high = 0, total
        while low < high:  # the length grows with the number of alerts
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(write(message, dialect, middle, short)) else (low, middle - 1)
        if low or not total:
            return write(message, dialect, low, short)
    return write(message, dialect, 0, short=True)


def write(message: Message, dialect: Dialect, count: int, short: bool) -> str:
    """Write the message with its first ``count`` alerts, in full or in short."""
    escape, words = dialect.escape, message.words
    blocks = [f"### {dialect.state(escape(message.title), message.firing)}"] if dialect.heading else []
    if message.head and not short:
        blocks.append(dialect.line.join(map(escape, message.head)))
    blocks += [dialect.line.join(_lines(item, message, dialect, short)) for item in message.items[:count]]
    if left := len(message.items) - count + message.omitted:
        blocks.append(words.more.format(n=left))
    if message.mentions:
        blocks.append(" ".join(map(dialect.mention, message.mentions)))
    return "\n\n".join(blocks)


def _lines(item: Item, message: Message, dialect: Dialect, short: bool) -> list[str]:
    escape, words = dialect.escape, message.words
    icon = _ICONS.get(item.severity, _OTHER) if item.firing else _RESOLVED
    lines = [f"{icon} {dialect.strong(escape(item.summary))}"]
    if not short:
        lines += [*map(escape, item.description), escape(item.value), escape(item.labels)]
    lines.append(escape(item.times))
    links = ((words.runbook, item.runbook), (words.dashboard, item.dashboard))
    lines.append(" | ".join(f"[{word}]({url})" for word, url in links if url))
    return [line for line in lines if line]
