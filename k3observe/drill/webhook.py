"""A receiver of Alertmanager's webhooks that keeps what it got: the other end of a notification, in tests and demo."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Notification:
    """One webhook call: the path it went to and Alertmanager's payload (version 4)."""

    path: str
    payload: dict[str, Any]

    @property
    def status(self) -> str:
        """`firing` or `resolved`."""
        return str(self.payload.get("status", ""))

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts of the group, each with status, labels and annotations."""
        return list(self.payload.get("alerts", []))

    def names(self) -> set[str]:
        """Return the names of the alerts in it."""
        return {str(alert.get("labels", {}).get("alertname", "")) for alert in self.alerts}


class Receiver:
    """A running receiver; `url(path)` is the address to give to Alertmanager, one path a receiver there."""

    def __init__(self, port: int = 0) -> None:
        self._notifications: list[Notification] = []
        self._arrived = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def url(self, path: str = "/") -> str:
        """Return the address of a path."""
        return f"http://127.0.0.1:{self.port}/{path.lstrip('/')}"

    @property
    def notifications(self) -> tuple[Notification, ...]:
        """Everything received so far, oldest first."""
        with self._arrived:
            return tuple(self._notifications)

    def wait_for(self, wanted: Callable[[Notification], bool], seconds: float) -> Notification:
        """Return the first wanted notification, received already or within so many seconds; else TimeoutError."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while True:
                for notification in self._notifications:
                    if wanted(notification):
                        return notification
                left = deadline - time.monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    got = [(n.path, n.status, sorted(n.names())) for n in self._notifications]
                    raise TimeoutError(f"no such notification within {seconds:g} s; received: {got}")

    def keep(self, notification: Notification) -> None:
        """Record one and wake who waits for it."""
        with self._arrived:
            self._notifications.append(notification)
            self._arrived.notify_all()

    def run(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receive(port: int = 0) -> Iterator[Receiver]:
    """Run a receiver in a thread of this process; port 0 takes a free one."""
    receiver = Receiver(port)
    thread = threading.Thread(target=receiver.run, name=f"webhook-{receiver.port}", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join(timeout=5)


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            try:
                if not length.isdecimal() or int(length) > _MAX_BYTES:
                    raise ValueError("no length, or too long")
                payload = json.loads(self.rfile.read(int(length)))
                if not isinstance(payload, dict):
                    raise ValueError("not a JSON object")
            except ValueError as error:
                self.close_connection = True
                self._reply(400, f"{error}\n".encode())
                return
            receiver.keep(Notification(self.path, payload))
            self._reply(200, b"received\n")

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: what was received is kept."""

    return Handler
