"""One client's connection: its state, its deadline, and non-blocking reading and writing, plain or TLS."""

from __future__ import annotations

import enum
import selectors
import socket
import ssl
import time

from k3observe.exporters.web.http import MAX_HEAD, Request

REQUEST_SECONDS = 10.0
"""From the first moment of a connection (or the first byte of a further request) to the end of the request's head."""
IDLE_SECONDS = 180.0
ANSWER_SECONDS = 10.0
WRITE_SECONDS = 30.0
DRAIN_SECONDS = 1.0

_CHUNK = 16 * 1024
_MAX_DRAIN = 1 << 20


class State(enum.Enum):
    """What the connection waits for."""

    HANDSHAKE = enum.auto()
    READING = enum.auto()
    WORKING = enum.auto()
    WRITING = enum.auto()
    DRAINING = enum.auto()
    """The last response is out; what the client still sends is thrown away, or the kernel would reset the
    connection and with it the response."""


class Connection:
    """Every state has a deadline for the whole of it, so a client that drips is as bounded as a silent one."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.state = State.HANDSHAKE if context else State.READING
        self.sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) if context else sock
        self.received = bytearray()
        self.closed = self.ended = False
        self.keep_alive, self.head_only = False, False
        self.ticket = 0
        self.watched = selectors.EVENT_READ
        self.wants = 0
        self._served = 0
        self._drained = 0
        self._out: list[memoryview] = []
        self._enter(self.state, REQUEST_SECONDS)

    def _enter(self, state: State, seconds: float) -> None:
        self.state, self.since = state, time.monotonic()
        self.deadline = self.since + seconds
        self.wants = 0

    @property
    def idle(self) -> bool:
        """Whether it waits for another request after an answered one."""
        return self.state is State.READING and self._served > 0 and not self.received

    def handshake(self) -> bool:
        """Go on with the TLS handshake; whether it is done. Raises OSError."""
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.wants = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self.wants = selectors.EVENT_WRITE
            return False
        self.state, self.wants = State.READING, 0  # the deadline stays: handshake and request share it
        return True

    def receive(self) -> bool:
        """Read what is there; False when there is nothing (``ended``: and never will be). Raises OSError."""
        self.wants = 0
        was_idle = self.idle
        try:
            data = self.sock.recv(min(_CHUNK, MAX_HEAD + 1))
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except ssl.SSLWantWriteError:
            self.wants = selectors.EVENT_WRITE
            return False
        if not data:
            self.ended = True
            return False
        self.received += data
        if was_idle:
            self._enter(State.READING, REQUEST_SECONDS)
        return True

    def begin_work(self, request: Request) -> None:
        """Note the request that is being answered."""
        self.keep_alive, self.head_only = request.keep_alive, request.method == "HEAD"
        self._enter(State.WORKING, ANSWER_SECONDS)
        self.ticket += 1

    def begin_response(self, head: bytes, body: bytes) -> None:
        """Queue a response; a small body goes out in one piece with the head, a large one is not copied."""
        self._out = [memoryview(head + body)] if len(body) < _CHUNK else [memoryview(head), memoryview(body)]
        self.ticket += 1  # an answer that comes later than this one is dropped
        self._enter(State.WRITING, WRITE_SECONDS)

    def send(self) -> bool:
        """Write what the client takes; whether the response is out. Raises OSError."""
        self.wants = 0
        while self._out:
            if not self._out[0]:
                del self._out[0]
                continue
            try:
                sent = self.sock.send(self._out[0])
            except (BlockingIOError, ssl.SSLWantWriteError):
                return False
            except ssl.SSLWantReadError:
                self.wants = selectors.EVENT_READ
                return False
            self._out[0] = self._out[0][sent:]
        self._served += 1
        if self.keep_alive:
            self._enter(State.READING, REQUEST_SECONDS if self.received else IDLE_SECONDS)
        else:
            self._enter(State.DRAINING, DRAIN_SECONDS)
            self.sock.shutdown(socket.SHUT_WR)
        return True

    def drained(self) -> bool:
        """Throw away what the client sent; whether the connection can be closed. Raises OSError."""
        while self._drained < _MAX_DRAIN:
            try:
                data = self.sock.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            if not data:
                return True
            self._drained += len(data)
        return True

    def close(self) -> None:
        """Close the socket and drop what is queued."""
        self.closed = True
        self._out, self.received = [], bytearray()
        self.sock.close()
