"""A small HTTP server for a few short requests: bounded in connections, bytes and time.

It answers one request a connection. Neither Alertmanager nor Prometheus suffers from that, and nobody can hold a
connection open.
"""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

MAX_CONNECTIONS = 64
DEADLINE = 15.0
"""Seconds a client has for its whole request."""
_DRAIN_SECONDS = 1.0
_DRAIN_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    code: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A request: method, path without query, headers it may be judged by, and its body read on demand."""

    method: str
    path: str
    accept: str
    authorization: str
    length: str | None
    chunked: bool
    read: Callable[[int], bytes] = field(repr=False)


class App(Protocol):
    """Answers requests; called in many threads."""

    def __call__(self, call: Call) -> Answer:
        """Answer one request."""


class _Deadline(io.RawIOBase):
    """Reads a socket until a moment: a client that sends a byte now and then must not hold a thread."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "k3observe-notify"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        context = self.server.tls()
        if context is not None:
            self.request.settimeout(DEADLINE)
            self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()
        self.rfile = io.BufferedReader(_Deadline(self.connection, DEADLINE))

    def _answer(self) -> None:
        call = Call(
            method=self.command,
            path=self.path.split("?", 1)[0],
            accept=self.headers.get("Accept", ""),
            authorization=self.headers.get("Authorization", ""),
            length=self.headers.get("Content-Length"),
            chunked="Transfer-Encoding" in self.headers,
            read=self.rfile.read,
        )
        answer = self.server.app(call)
        self.connection.settimeout(DEADLINE)
        self.close_connection = True
        self.send_response(answer.code)
        for name, value in (
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Connection", "close"),
            *answer.headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def finish(self) -> None:
        """Throw away what was not read of a refused body: else the kernel resets the connection and the answer."""
        super().finish()
        with self.connection:
            self.connection.settimeout(_DRAIN_SECONDS)
            self.connection.shutdown(socket.SHUT_WR)
            end, left = time.monotonic() + _DRAIN_SECONDS, _DRAIN_BYTES
            while left > 0 and time.monotonic() < end and (data := self.connection.recv(65536)):
                left -= len(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: requests are counted."""


class Server(ThreadingHTTPServer):
    """Serves ``app`` on ``host`` and ``port`` (0: any free one); over HTTPS where ``tls`` gives a context.

    ``tls`` is asked for each connection, so that a rotated certificate is used at once. Raises OSError when the
    address cannot be used.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: App, tls: Callable[[], ssl.SSLContext | None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.app = app
        self.tls = tls
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, or close it where all are taken: the client tries again."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent about clients that go away or talk no HTTP; an error of ours is answered by the app."""
