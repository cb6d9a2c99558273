"""HTTP/1.1 as far as an exporter needs it: reads the head of a request, writes a response."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

MAX_LINE = 8 * 1024
MAX_HEAD = 16 * 1024
MAX_HEADERS = 100

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_END = re.compile(rb"\r?\n\r?\n")

Authenticate = Callable[[str], "bool | Callable[[], bool]"]
"""Judges an Authorization header: at once, or by a function that takes time (a password to be hashed)."""

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 414: "URI Too Long", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}


class Request(NamedTuple):
    """The head of a request; header names are in lower case, repeated ones joined by a comma."""

    method: str
    path: str
    headers: dict[str, str]
    keep_alive: bool


class Response(NamedTuple):
    """A response whose body is whole in memory and may be shared by many."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class BadRequestError(Exception):
    """A request that is refused with this status; the connection is closed after it."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def text(status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a plain text response of one line."""
    return Response(status, "text/plain; charset=utf-8", f"{message}\n".encode(), headers)


def take_request(buffer: bytearray) -> Request | None:
    """Take the next request from what was received, or None when its head is not complete.

    Raises BadRequestError. A request with a body is answered and its connection closed: nothing here reads one.
    """
    while buffer[:2] == b"\r\n" or buffer[:1] == b"\n":  # blank lines before a request are allowed
        del buffer[: 2 if buffer[:1] == b"\r" else 1]
    end = _END.search(buffer)
    if end is None or end.end() > MAX_HEAD:
        newline = buffer.find(b"\n")
        if (newline if newline >= 0 else len(buffer)) > MAX_LINE:
            raise BadRequestError(414, f"the request line is longer than {MAX_LINE} bytes")
        if len(buffer) > MAX_HEAD:
            raise BadRequestError(431, f"the request head is larger than {MAX_HEAD} bytes")
        return None
    head = bytes(buffer[: end.start()])
    del buffer[: end.end()]
    return _parse(head)


def _parse(head: bytes) -> Request:
    first, *lines = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    if len(first) > MAX_LINE:
        raise BadRequestError(414, f"the request line is longer than {MAX_LINE} bytes")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadRequestError(400, "this is no HTTP request")
    if match[3] != b"1":
        raise BadRequestError(505, "only HTTP/1 is served")
    if len(lines) > MAX_HEADERS:
        raise BadRequestError(431, f"more than {MAX_HEADERS} header lines")
    headers: dict[str, str] = {}
    for line in lines:
        field = _HEADER.fullmatch(line)
        if field is None:
            raise BadRequestError(400, "a header line is malformed")
        name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1")
        if name == "host" and name in headers:
            raise BadRequestError(400, "the header Host is given twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    modern = match[4] != b"0"
    if modern and "host" not in headers:
        raise BadRequestError(400, "the header Host is missing")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    keep_alive = "close" not in options if modern else "keep-alive" in options
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        keep_alive = False
    return Request(match[1].decode("ascii"), _path(match[2].decode("ascii")), headers, keep_alive)


def _path(target: str) -> str:
    """Return the path of a target in origin or absolute form."""
    if "://" in target.partition("?")[0]:
        target = "/" + target.partition("://")[2].partition("/")[2]
    return target.partition("?")[0].partition("#")[0]


def head_of(response: Response, *, keep_alive: bool) -> bytes:
    """Return status line and headers, with the length of the body whether it is sent or not."""
    date = time.gmtime()
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[date.tm_wday]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[date.tm_mon - 1]
    lines = [
        f"HTTP/1.1 {response.status} {REASONS[response.status]}",
        f"Date: {day}, {date.tm_mday:02d} {month} {date.tm_year} {time.strftime('%H:%M:%S', date)} GMT",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        *(f"{name}: {value}" for name, value in response.headers),
    ]
    if not any(name == "X-Content-Type-Options" for name, _ in response.headers):
        lines.append("X-Content-Type-Options: nosniff")
    if not keep_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
