"""One POST to a platform over requests. Nothing it raises or returns holds the URL, since the URL holds the token."""

from __future__ import annotations

import json
from typing import Any

import requests

from k3observe.notify.robot import Reply, Request
from k3observe.version import __version__

_MAX_REPLY = 64 * 1024
_MAX_WAIT = 600.0


class UnreachableError(Exception):
    """No answer came; the text says why, without the address's token."""


def post(session: requests.Session, request: Request, timeout: float) -> Reply:
    """Send and read at most 64 KiB of the answer; ``timeout`` (s) is for connecting and for each read.

    Raises UnreachableError. Redirects are not followed: they would carry the token to another host.
    """
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": f"k3observe-notify/{__version__}"}
    try:
        with session.post(
            request.url, data=request.body, headers=headers, timeout=timeout, allow_redirects=False, stream=True
        ) as response:
            raw = next(response.iter_content(_MAX_REPLY), b"")
            return Reply(response.status_code, _wait(response.headers), _document(raw))
    except requests.RequestException as error:
        raise UnreachableError(_reason(error)) from None


def _reason(error: requests.RequestException) -> str:
    for kind, text in (
        (requests.exceptions.ProxyError, "the proxy of HTTPS_PROXY or HTTP_PROXY cannot be used"),
        (requests.exceptions.SSLError, "TLS failed: check base_url, the clock and REQUESTS_CA_BUNDLE"),
        (requests.exceptions.ConnectTimeout, "no connection within the time-out: check the firewall and HTTPS_PROXY"),
        (requests.exceptions.Timeout, "no answer within the time-out"),
        (requests.exceptions.ConnectionError, "no connection: check base_url, DNS, the firewall and HTTPS_PROXY"),
    ):
        if isinstance(error, kind):
            return text
    return f"the request failed ({type(error).__name__})"


def _wait(headers: Any) -> float:
    for name in ("Retry-After", "x-ogw-ratelimit-reset"):
        text = headers.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 10:
            return min(float(text), _MAX_WAIT)
    return 0.0


def _document(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
