"""What every platform's robot offers the bridge, and how a platform's answer is judged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from k3observe.notify.message import Message
from k3observe.notify.payload import clean

Status = Literal["ok", "rate_limited", "refused", "rejected", "error"]
"""How a send ended: delivered; too many messages; not for this token, signature or address (a person must act);
this text never; and everything that may pass by itself."""

STATUSES: tuple[Status, ...] = ("ok", "rate_limited", "refused", "rejected", "error")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A robot's token and, where it signs, its secret. Never shown: ``repr`` hides both."""

    token: str
    secret: str

    def __repr__(self) -> str:
        return "Credentials(***)"

    def hide(self, text: str) -> str:
        """Take the token and the secret out of a text from outside."""
        for value in (self.token, self.secret):
            text = text.replace(value, "***") if value else text
        return text


@dataclass(frozen=True, slots=True)
class Request:
    """A POST to a platform. The URL carries the token: it must not be logged."""

    url: str
    body: bytes

    def __repr__(self) -> str:
        return f"Request(***, {len(self.body)} bytes)"


@dataclass(frozen=True, slots=True)
class Reply:
    """A platform's answer: HTTP status, seconds it asks to wait (0: none), the JSON object ({} where it is none)."""

    status: int
    wait: float
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a send ended, what to do about it, and the seconds the platform asks to wait."""

    status: Status
    advice: str = ""
    wait: float = 0.0


class Platform(Protocol):
    """A platform's robots. ``burst`` messages at once and ``per_second`` afterwards stay below its rate limit."""

    name: str
    base_url: str
    signs: bool
    burst: int
    per_second: float

    def token(self, text: str) -> str:
        """Take the token out of a file's text: the token itself, or the webhook URL as the platform shows it."""

    def mention_problem(self, user: str) -> str:
        """Say why the platform's robots cannot mention this user; empty when they can."""

    def request(self, message: Message, credentials: Credentials, base_url: str, now: float) -> Request:
        """Write and sign a message; ``now`` is in seconds since the epoch."""

    def judge(self, reply: Reply) -> Outcome:
        """Judge an answer."""


def sign(key: str, text: str) -> str:
    """HMAC-SHA256 in base64, as DingTalk and Feishu use it."""
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode("ascii")


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode a body; not in ASCII, since the platforms limit bytes and a Chinese character would take six."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def judge(reply: Reply, code: object, text: object, codes: Mapping[int, tuple[Status, str]]) -> Outcome:
    """Judge an answer by the platform's own code first: errors come under HTTP 200, with Feishu also under 400."""
    said = clean(text, 200) if isinstance(text, str) else ""
    if isinstance(code, int) and not isinstance(code, bool):
        if code == 0 and reply.status == 200:
            return Outcome("ok")
        if code in codes:
            status, advice = codes[code]
            return Outcome(status, f"code {code} ({said}): {advice}", reply.wait)
    if reply.status == 429:
        return Outcome("rate_limited", "HTTP 429: give each sender its own robot", reply.wait)
    if reply.status >= 500:
        return Outcome("error", f"HTTP {reply.status}: the platform has trouble; tried again later", reply.wait)
    if reply.status != 200:
        return Outcome("refused", f"HTTP {reply.status} ({said}): check base_url and the proxy")
    if code is None:
        return Outcome("refused", "HTTP 200 without the platform's code: check base_url, something else answers there")
    return Outcome("error", f"code {clean(str(code), 20)} ({said}): look the code up in the platform's documentation")
