"""WeCom's group robots: Markdown of at most 4,096 bytes, the key in the query, 20 messages a minute."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

from k3observe.notify.markdown import Dialect, fit
from k3observe.notify.message import EVERYBODY, Message
from k3observe.notify.robot import Credentials, Outcome, Reply, Request, Status, encode, judge

MAX_BYTES = 4096
"""Of the Markdown text alone; a longer one is answered with code 40058."""

# WeCom's Markdown has no escapes: what would become a link, a mention, a colour or emphasis is shown full-width
_NEUTRAL = str.maketrans({"<": "＜", "[": "［", "]": "］", "*": "＊", "`": "＇"})
_USER = re.compile(r"[A-Za-z0-9_.@\-]{1,64}")

_CODES: dict[int, tuple[Status, str]] = {
    -1: ("error", "WeCom is busy; tried again later"),
    45009: ("rate_limited", "more than 20 messages a minute; give each sender its own robot"),
    45033: ("rate_limited", "too many requests at once; give each sender its own robot"),
    93000: ("refused", "the key is unknown: put the robot's current webhook URL into token_file"),
    93004: ("refused", "the robot is switched off or was removed: add it to the group again"),
    93008: ("refused", "the robot is not in the group: add it again"),
    93017: ("refused", "the robot's company or group is not available: check the group"),
    40058: ("rejected", "the message is too long or not as WeCom wants it"),
    40008: ("rejected", "the message type is not accepted"),
    44004: ("rejected", "the message is empty"),
}

_DIALECT = Dialect(
    escape=lambda text: text.translate(_NEUTRAL),
    strong=lambda text: f"**{text}**",
    mention=lambda user: f"<@{user}>",
    state=lambda text, firing: f'<font color="{"warning" if firing else "info"}">{text}</font>',
    line="\n",
    heading=True,
)


class WeCom:
    """Sends to WeCom. Burst and rate keep any 60 seconds at 19 messages or fewer (limit: 20)."""

    name = "wecom"
    base_url = "https://qyapi.weixin.qq.com"
    signs = False
    burst = 5
    per_second = 14 / 60

    def token(self, text: str) -> str:
        """Take ``key`` out of a webhook URL; any other text is the key."""
        return parse_qs(urlsplit(text).query).get("key", [""])[0] if "://" in text else text

    def mention_problem(self, user: str) -> str:
        """Accept user ids; in Markdown WeCom knows neither "all" nor mobile numbers."""
        if user == EVERYBODY:
            return "is not known to WeCom's Markdown: name single user ids"
        return "" if _USER.fullmatch(user) else "is no WeCom user id"

    def request(self, message: Message, credentials: Credentials, base_url: str, now: float) -> Request:
        """Write a Markdown message; WeCom has no signature, the key is all."""
        text = fit(message, _DIALECT, lambda text: len(text.encode()) <= MAX_BYTES)
        url = f"{base_url}/cgi-bin/webhook/send?key={quote(credentials.token, safe='')}"
        return Request(url, encode({"msgtype": "markdown", "markdown": {"content": text}}))

    def judge(self, reply: Reply) -> Outcome:
        """Judge by ``errcode``."""
        return judge(reply, reply.document.get("errcode"), reply.document.get("errmsg"), _CODES)
