"""The event loop: accepts, reads, answers, writes; no client can hold a thread, only a bounded connection."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from k3observe.exporters.web import http
from k3observe.exporters.web.app import Answer, App
from k3observe.exporters.web.connection import Connection, State
from k3observe.exporters.web.lanes import Lanes

BACKLOG = 1024
MAX_CONNECTIONS = 256
OWN_DESCRIPTORS = 32
"""File descriptors that clients leave to the collectors where the process may open few."""
STEPS = 64
"""Steps of one connection before others have a turn: a client may send requests faster than it reads answers."""

_EVENTS = {
    State.HANDSHAKE: selectors.EVENT_READ, State.READING: selectors.EVENT_READ, State.WORKING: 0,
    State.WRITING: selectors.EVENT_WRITE, State.DRAINING: selectors.EVENT_READ,
}


def listen(host: str, port: int) -> list[socket.socket]:
    """Open listening sockets; without a host for all addresses, IPv6 and IPv4. Raises OSError."""
    if host:
        family, _, _, _, sockaddr = socket.getaddrinfo(os.fsencode(host), port, type=socket.SOCK_STREAM,
                                                       flags=socket.AI_PASSIVE)[0]
        return [socket.create_server(sockaddr, family=family, backlog=BACKLOG)]
    if socket.has_dualstack_ipv6():
        try:
            return [socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)]
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # IPv6 is switched off
                raise
    return [socket.create_server(("0.0.0.0", port), backlog=BACKLOG)]  # noqa: S104 - asked for: no host given


class Server:
    """Serves an App on listening sockets; ``run`` is the loop, ``stop`` may be called from a signal handler."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        app: App,
        log: logging.Logger,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listeners = tuple(listeners)
        self._app = app
        self._log = log
        self._tls = tls
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            max_connections = max(1, min(max_connections, descriptors - OWN_DESCRIPTORS))
        self._max_connections = max_connections
        self._refused_at = float("-inf")
        self._lanes = Lanes()
        self._connections: set[Connection] = set()
        self._pending: deque[tuple[Connection, int, Answer | None]] = deque()
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._selector = selectors.DefaultSelector()

    def stop(self) -> None:
        """End ``run``."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Serve until ``stop``."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._patience()):
                    if isinstance(key.data, Connection):
                        if not key.data.closed:  # it may just have given way to a new one
                            self._guarded(key.data, partial(self._advance, key.data))
                    elif key.data is None:
                        self._drain_wake_pipe()
                    else:
                        self._accept(key.data)
                for _ in range(len(self._pending)):
                    connection, ticket, answer = self._pending.popleft()
                    if not connection.closed and connection.ticket == ticket:
                        self._guarded(connection, partial(self._resume, connection, answer))
                self._expire()
        finally:
            for listener in self._listeners:
                listener.close()
            for connection in list(self._connections):
                self._close(connection)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_writer, b"\0")

    def _drain_wake_pipe(self) -> None:
        try:
            while os.read(self._wake_reader, 4096):
                pass
        except BlockingIOError:
            return

    def _patience(self) -> float | None:
        if self._pending:
            return 0
        if not self._connections:
            return None
        return max(0.0, min(connection.deadline for connection in self._connections) - time.monotonic())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: give one up, else the loop would spin
                now = time.monotonic()
                if now > self._refused_at + 60:
                    self._refused_at = now
                    self._log.warning("cannot accept a connection: %s; said once a minute", error)
                if not self._evict():
                    time.sleep(0.05)
                return
            if len(self._connections) >= self._max_connections and not self._evict():
                sock.close()
                continue
            try:
                connection = Connection(sock, self._tls())
            except Exception as error:  # the loop must live on, whatever has become of the certificate's files
                level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
                self._log.log(level, "connection refused: %s", error)
                sock.close()
                continue
            self._connections.add(connection)
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
            self._guarded(connection, partial(self._advance, connection))

    def _evict(self) -> bool:
        """Close the connection that is missed least: the longest idle, else the slowest to send or to read."""
        candidates = [c for c in self._connections if c.state is not State.WORKING]
        if not candidates:
            return False
        self._close(min(candidates, key=lambda c: (not c.idle, c.state is State.WRITING, c.since)))
        return True

    def _guarded(self, connection: Connection, step: Callable[[], None]) -> None:
        """Run a step of a connection; whatever goes wrong ends this connection only."""
        try:
            step()
            if not connection.closed:
                self._watch(connection)
        except (OSError, ssl.SSLError) as error:
            self._log.debug("connection ended: %s", error)
            self._close(connection)
        except Exception:
            self._log.exception("connection ended by an error")
            self._close(connection)

    def _watch(self, connection: Connection) -> None:
        events = connection.wants or _EVENTS[connection.state]
        if events == connection.watched:
            return
        if not connection.watched:
            self._selector.register(connection.sock, events, connection)
        elif not events:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.watched = events

    def _advance(self, connection: Connection) -> None:
        """Go on with a connection until it has to wait for its client or for an answer, or others have a turn."""
        for _ in range(STEPS):
            if connection.state is State.HANDSHAKE:
                if not connection.handshake():
                    return
            elif connection.state is State.READING:
                try:
                    request = http.take_request(connection.received)
                except http.BadRequestError as error:
                    connection.keep_alive = connection.head_only = False
                    self._send(connection, http.text(error.status, str(error)))
                    continue
                if request is not None:
                    connection.begin_work(request)
                    self._answer(connection, self._app.answer(request))
                elif not connection.receive():
                    if connection.ended:
                        self._close(connection)
                    return
            elif connection.state is State.WORKING:
                return
            elif connection.state is State.WRITING:
                if not connection.send():
                    return
            else:
                if connection.drained():
                    self._close(connection)
                return
        self._pending.append((connection, connection.ticket, None))

    def _resume(self, connection: Connection, answer: Answer | None) -> None:
        if answer is not None:
            self._answer(connection, answer)
        self._advance(connection)

    def _answer(self, connection: Connection, answer: Answer) -> None:
        if isinstance(answer, http.Response):
            self._send(connection, answer)
            return
        ticket = connection.ticket

        def job() -> None:
            result: Answer
            if connection.closed or connection.ticket != ticket:
                return  # the client has gone or was told that it took too long
            try:
                result = answer.run()
            except Exception:
                self._log.exception("a request failed")
                result = http.text(500, "The exporter failed; see its log.")
            self._pending.append((connection, ticket, result))
            self._wake()

        if not self._lanes.submit(answer.lane, job, answer.waiting):
            self._send(connection, http.text(503, "The exporter is busy."))

    def _send(self, connection: Connection, response: http.Response) -> None:
        response = response._replace(headers=(*response.headers, *self._app.headers()))
        head = http.head_of(response, keep_alive=connection.keep_alive)
        connection.begin_response(head, b"" if connection.head_only else response.body)

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._connections if c.deadline <= now]:
            if connection.state is State.WORKING:
                connection.keep_alive = False
                self._guarded(connection, partial(
                    self._resume, connection, http.text(503, "The exporter took too long to answer.")))
            else:
                self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        if connection.watched:
            self._selector.unregister(connection.sock)
            connection.watched = 0
        connection.close()
        self._connections.discard(connection)
