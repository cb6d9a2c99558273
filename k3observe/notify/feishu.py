"""Feishu's custom bots, and Lark's, which are the same: a card, signed in the body, 100 a minute and 5 a second."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from k3observe.notify.markdown import Dialect, fit
from k3observe.notify.message import Message
from k3observe.notify.robot import Credentials, Outcome, Reply, Request, Status, encode, judge, sign

MAX_BYTES = 20_000
"""Of the whole body: Feishu's guide to custom bots says 20 KB; older ones refused only above 30 KB (code 19036)."""

# in a card's Markdown special characters are written as HTML entities
_ENTITIES = str.maketrans({character: f"&#{ord(character)};" for character in "&<>*[]~`_$\\"})
_USER = re.compile(r"[A-Za-z0-9_\-]{1,64}")

_RATE = "more than 5 messages a second or 100 a minute, or Feishu is busy, as on the hour; tried again later"
_CODES: dict[int, tuple[Status, str]] = {
    9499: ("rejected", "the message is not as Feishu wants it"),
    11232: ("rate_limited", _RATE),
    11233: ("rate_limited", _RATE),
    99991400: ("rate_limited", _RATE),
    11246: ("rejected", "the card is not as Feishu wants it, or mentions a user it does not know: check mention"),
    19001: ("refused", "the token is unknown: put the bot's current webhook URL into token_file; a bot of Lark "
                       "needs type: lark"),
    19002: ("rejected", "the message is not as Feishu wants it"),
    19007: ("refused", "the bot is switched off: switch it on in the group's settings"),
    19021: ("refused", "the signature does not match: put the bot's signing secret into secret_file, and keep the "
                       "clock within an hour"),
    19022: ("refused", "the bot admits only some addresses: add this host's address to the bot's list"),
    19024: ("refused", "the bot demands a keyword, which does not suit alerts: choose the signature instead"),
    19036: ("rejected", "the message is too large"),
}  # fmt: skip

_DIALECT = Dialect(
    escape=lambda text: text.translate(_ENTITIES),
    strong=lambda text: f"**{text}**",
    mention=lambda user: f"<at id={user}></at>",
    state=lambda text, firing: text,
    line="\n",
    heading=False,
)


class Feishu:
    """Sends to Feishu. Burst and rate stay at 4 messages in any second and 99 in any minute (limits: 5 and 100)."""

    signs = True
    burst = 3
    per_second = 1.6

    def __init__(self, name: str, base_url: str) -> None:
        self.name = name
        self.base_url = base_url

    def token(self, text: str) -> str:
        """Take the last step of a webhook URL's path; any other text is the token."""
        return urlsplit(text).path.rstrip("/").rsplit("/", 1)[-1] if "://" in text else text

    def mention_problem(self, user: str) -> str:
        """Accept open ids (``ou_...``), user ids and "all"; custom bots cannot mention by e-mail or mobile number."""
        return "" if _USER.fullmatch(user) else "is no open id (ou_...) and no user id; custom bots know nothing else"

    def request(self, message: Message, credentials: Credentials, base_url: str, now: float) -> Request:
        """Write a card; the signature keys HMAC with timestamp (s), line feed and secret, over an empty text."""
        head: dict[str, str] = {}
        if credentials.secret:
            moment = str(int(now))
            head = {"timestamp": moment, "sign": sign(f"{moment}\n{credentials.secret}", "")}

        def body(text: str) -> bytes:
            card = {
                "config": {"wide_screen_mode": True},
                "header": {"template": _colour(message), "title": {"tag": "plain_text", "content": message.title}},
                "elements": [{"tag": "markdown", "content": text}],
            }
            return encode({**head, "msg_type": "interactive", "card": card})

        text = fit(message, _DIALECT, lambda text: len(body(text)) <= MAX_BYTES)
        return Request(f"{base_url}/open-apis/bot/v2/hook/{quote(credentials.token, safe='')}", body(text))

    def judge(self, reply: Reply) -> Outcome:
        """Judge by ``code``, or by the ``StatusCode`` of older answers."""
        code = reply.document.get("code", reply.document.get("StatusCode"))
        text = reply.document.get("msg", reply.document.get("StatusMessage"))
        if code == 9499 and isinstance(text, str) and "too many" in text.lower():
            # the code stands for bad requests as well
            return Outcome("rate_limited", f"code 9499: {_RATE}", reply.wait)
        return judge(reply, code, text, _CODES)


def _colour(message: Message) -> str:
    if not message.firing:
        return "green"
    return {"critical": "red", "warning": "orange"}.get(message.severity, "blue")


FEISHU = Feishu("feishu", "https://open.feishu.cn")
LARK = Feishu("lark", "https://open.larksuite.com")
