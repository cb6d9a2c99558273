"""Drives the real exporter process, and plays an engine on a real socket."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PROGRAM = (sys.executable, "-m", "k3observe.exporters.main")
FAKE = (sys.executable, str(Path(__file__).parent / "core" / "fake_program.py"))
"""The exporter with a collector that does what its flags say."""


class Exporter:
    """A running k3observe-exporter; ``log`` grows as it writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log = ""
        self.port = 0

    def wait_for_log(self, pattern: str, seconds: float = 10) -> re.Match[str]:
        """Wait until the log matches."""
        assert self.process.stderr is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            match = re.search(pattern, self.log)
            if match:
                return match
            if select.select([self.process.stderr], [], [], 0.1)[0]:
                self.log += os.read(self.process.stderr.fileno(), 65536).decode()
            if self.process.poll() is not None:
                break
        raise AssertionError(f"no {pattern!r} in the log:\n{self.log}")

    def connect(self) -> socket.socket:
        """Open a plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def ask(self, text: str) -> bytes:
        """Send bytes as they are and return all that comes until the end of the connection."""
        with self.connect() as sock:
            sock.sendall(text.encode())
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def get(self, path: str, *headers: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Make one request."""
        lines = (f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers)
        return split(self.ask("\r\n".join(lines) + "\r\n\r\n"))

    def metric(self, start: str) -> float | None:
        """Return the value of the first sample whose line starts so."""
        body = self.get("/metrics")[2].decode()
        found = re.search(rf"^{re.escape(start)}.* (\S+)$", body, re.MULTILINE)
        return float(found[1]) if found else None


def call(*flags: str, program: tuple[str, ...] = FAKE, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the exporter to its end."""
    return subprocess.run((*program, *flags), capture_output=True, text=True, timeout=30,
                          env={**os.environ, **variables}, check=False)


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Split a response into status, headers (lower case) and body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def wait_until(true: Callable[[], object], seconds: float = 10) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


class Engine:
    """An engine's metrics on a real socket; ``serve`` is what it does with a connection whose request is read."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.body = b""
        self.requests: list[bytes] = []
        self.serve: Callable[[socket.socket], None] = self.answer
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of its metrics."""
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}/metrics"

    def answer(self, sock: socket.socket, status: str = "200 OK", *headers: str) -> None:
        """Send the body as an engine does."""
        head = (f"HTTP/1.1 {status}", "Content-Type: text/plain; version=0.0.4", f"Content-Length: {len(self.body)}",
                *headers)
        sock.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + self.body)

    def close(self) -> None:
        """Refuse connections from now on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept that waits
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(sock,), daemon=True).start()

    def _one(self, sock: socket.socket) -> None:
        try:
            with self._context.wrap_socket(sock, server_side=True) if self._context else sock as connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    data = connection.recv(65536)
                    if not data:
                        return
                    request += data
                self.requests.append(request)
                self.serve(connection)
        except OSError:
            return


class Certificate(NamedTuple):
    """Files of a certificate and its key; ``ca`` is the authority that signed it."""

    cert: Path
    key: Path
    ca: Path


