"""DingTalk's custom robots: Markdown of at most 20,000 bytes, signed in the query, 20 messages a minute."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

from k3observe.notify.markdown import Dialect, fit
from k3observe.notify.message import EVERYBODY, Message
from k3observe.notify.robot import Credentials, Outcome, Reply, Request, Status, encode, judge, sign

MAX_BYTES = 20_000
"""Of the whole body; a larger one is answered with code 460101."""

# DingTalk's Markdown has no escapes: what would become a link, an image, a tag or emphasis is shown full-width
_NEUTRAL = str.maketrans({"<": "＜", "[": "［", "]": "］", "*": "＊", "`": "＇", "\\": "＼"})
_MOBILE = re.compile(r"\+\d{1,4}-?\d{5,15}|1\d{10}")
_USER = re.compile(r"[A-Za-z0-9_.$:\-]{1,64}")

_CODES: dict[int, tuple[Status, str]] = {
    -1: ("error", "DingTalk is busy; tried again later"),
    130101: ("rate_limited", "more than 20 messages a minute; DingTalk may block the robot for 10 minutes; "
                             "give each sender its own robot"),
    660026: ("rate_limited", "too many messages for this robot; give each sender its own robot"),
    410100: ("rate_limited", "too many messages for this robot; give each sender its own robot"),
    90030: ("rate_limited", "the webhook's quota is used up; see the quota in DingTalk's administration"),
    310000: ("refused", "the robot's security setting refuses the message: put its signing secret (SEC...) "
                        "into secret_file, keep the clock within an hour, or admit this host's address; a keyword "
                        "does not suit alerts, choose the signature"),
    300001: ("refused", "the token is unknown: put the robot's current webhook URL into token_file"),
    300005: ("refused", "the token is unknown: put the robot's current webhook URL into token_file"),
    400101: ("refused", "the token is unknown: put the robot's current webhook URL into token_file"),
    400102: ("refused", "the robot is switched off: switch it on in the group's settings"),
    400013: ("refused", "the group was dissolved: create a robot in another group"),
    460101: ("rejected", "the message is too large"),
    430101: ("rejected", "the message holds a link DingTalk deems unsafe: check runbook_url and dashboard_url"),
    430102: ("rejected", "the message holds a text DingTalk deems unsafe"),
    430103: ("rejected", "the message holds a picture DingTalk deems unsafe"),
    430104: ("rejected", "the message holds content DingTalk deems unsafe"),
}  # fmt: skip

_DIALECT = Dialect(
    escape=lambda text: text.translate(_NEUTRAL),
    strong=lambda text: f"**{text}**",
    mention=lambda user: f"@{user}",
    state=lambda text, firing: f'<font color="{"#d9363e" if firing else "#2e9e5b"}">{text}</font>',
    line="  \n",
    heading=True,
)


class DingTalk:
    """Sends to DingTalk. Burst and rate keep any 60 seconds at 19 messages or fewer (limit: 20)."""

    name = "dingtalk"
    base_url = "https://oapi.dingtalk.com"
    signs = True
    burst = 5
    per_second = 14 / 60

    def token(self, text: str) -> str:
        """Take ``access_token`` out of a webhook URL; any other text is the token."""
        return parse_qs(urlsplit(text).query).get("access_token", [""])[0] if "://" in text else text

    def mention_problem(self, user: str) -> str:
        """Accept mobile numbers, user ids and "all"."""
        return "" if _MOBILE.fullmatch(user) or _USER.fullmatch(user) else "is no mobile number and no DingTalk user id"

    def request(self, message: Message, credentials: Credentials, base_url: str, now: float) -> Request:
        """Write a Markdown message; the signature is over timestamp (ms), line feed and secret, keyed by the secret."""
        mobiles = [user for user in message.mentions if _MOBILE.fullmatch(user)]
        users = [user for user in message.mentions if user != EVERYBODY and user not in mobiles]
        at = {"atMobiles": mobiles, "atUserIds": users, "isAtAll": EVERYBODY in message.mentions}

        def body(text: str) -> bytes:
            return encode({"msgtype": "markdown", "markdown": {"title": message.title, "text": text}, "at": at})

        text = fit(message, _DIALECT, lambda text: len(body(text)) <= MAX_BYTES)
        url = f"{base_url}/robot/send?access_token={quote(credentials.token, safe='')}"
        if credentials.secret:
            moment = str(round(now * 1000))
            signature = sign(credentials.secret, f"{moment}\n{credentials.secret}")
            url += f"&timestamp={moment}&sign={quote(signature, safe='')}"
        return Request(url, body(text))

    def judge(self, reply: Reply) -> Outcome:
        """Judge by ``errcode``."""
        return judge(reply, reply.document.get("errcode"), reply.document.get("errmsg"), _CODES)
