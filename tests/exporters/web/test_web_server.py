from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.exporters.registry import Registry
from k3observe.exporters.web import connection, http, negotiation
from k3observe.exporters.web.app import App
from k3observe.exporters.web.server import Server, listen
from k3observe.exporters.web.snapshots import Snapshots
from tests.exporters.exporter_process import split

HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"


class Silent:
    name = "silent"

    def __init__(self) -> None:
        self.blocked = threading.Event()
        self.routes = {"/slow": self._slow, "/broken": self._broken}

    def _slow(self) -> tuple[str, bytes]:
        self.blocked.wait(10)
        return "text/plain", b"late"

    def _broken(self) -> tuple[str, bytes]:
        raise RuntimeError("no window")

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def ready(self) -> bool:
        return True

    def collect(self) -> list[object]:
        return []


Serve = Callable[..., SimpleNamespace]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve in a thread of the test; ``ask`` sends bytes and reads to the end."""
    running: list[tuple[Server, threading.Thread]] = []

    def start(max_connections: int = 256) -> SimpleNamespace:
        collector = Silent()
        log = logging.getLogger("k3observe.test")
        sockets = listen("127.0.0.1", 0)
        server = Server(sockets, App(Snapshots(Registry([collector], log)), [collector]), log,  # type: ignore[list-item]
                        max_connections=max_connections)
        address = sockets[0].getsockname()
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))

        def connect() -> socket.socket:
            return socket.create_connection(address, timeout=10)

        def ask(data: bytes) -> bytes:
            with connect() as sock:
                sock.sendall(data)
                return read_all(sock)

        return SimpleNamespace(connect=connect, ask=ask, collector=collector, server=server)

    yield start
    for server, thread in running:
        server.stop()
        thread.join(5)
        assert not thread.is_alive()


def read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize(("request_head", "status"), [
    ("GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
    ("GET /-/healthy HTTP/1.0\r\n\r\n", 200),
    ("\r\nGET http://elsewhere/-/healthy?a=b HTTP/1.0\r\n\r\n", 200),
    ("GET /-/healthy HTTP/1.0\nA: b\n\n", 200),
    ("GET /nothing HTTP/1.0\r\n\r\n", 404),
    ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 405),
    ("DELETE / HTTP/1.0\r\n\r\n", 405),
    ("GET /-/healthy HTTP/1.1\r\n\r\n", 400),
    ("GET /-/healthy HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n", 400),
    ("GET /-/healthy HTTP/2.0\r\n\r\n", 505),
    ("GET  / HTTP/1.1\r\n\r\n", 400),
    ("\x16\x03\x01\x02\x00\r\n\r\n", 400),
    ("GET / HTTP/1.0\r\nBad Header: x\r\n\r\n", 400),
    ("GET / HTTP/1.0\r\n folded\r\n\r\n", 400),
    (f"GET /{'a' * 9000} HTTP/1.0\r\n\r\n", 414),
    ("a" * 9000, 414),
    (f"GET / HTTP/1.0\r\nA: {'b' * 20_000}\r\n\r\n", 431),
    ("GET / HTTP/1.0\r\n" + "A: b\r\n" * 101 + "\r\n", 431),
    ("GET /broken HTTP/1.0\r\n\r\n", 500),
])
def test_each_request_gets_the_right_status(serve: Serve, request_head: str, status: int) -> None:
    got, headers, body = split(serve().ask(request_head.encode("latin-1")))
    assert got == status
    assert headers["content-length"] == str(len(body))
    assert headers.get("allow") == ("GET, HEAD" if status == 405 else None)


def test_head_gives_the_headers_of_get_and_no_body(serve: Serve) -> None:
    web = serve()
    status, headers, body = split(web.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n"))
    _, full_headers, full = split(web.ask(b"GET /metrics HTTP/1.0\r\n\r\n"))
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) == len(full) > 0
    assert headers["content-type"] == full_headers["content-type"]


def test_pipelined_requests_are_answered_in_order_and_others_have_a_turn(serve: Serve) -> None:
    web = serve()
    answer = web.ask(HEALTHY * 200 + b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
                     + b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 201
    assert answer.rindex(b"HTTP/1.1 404") > answer.rindex(b"HTTP/1.1 200")


def test_clients_that_drip_or_stay_silent_are_cut_off_and_delay_nobody(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 1.0)
    web = serve()
    silent, dripping = web.connect(), web.connect()
    start = time.monotonic()
    while time.monotonic() - start < 3:
        try:
            dripping.sendall(b"G")
        except OSError:
            break
        asked = time.monotonic()
        assert web.ask(b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"Healthy\n")
        assert time.monotonic() - asked < 0.5
        time.sleep(0.2)
    assert 0.8 < time.monotonic() - start < 2.5
    assert read_all(silent) == b""


def test_an_idle_connection_is_closed_after_its_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.3)
    with serve().connect() as sock:
        sock.sendall(HEALTHY)
        start = time.monotonic()
        assert read_all(sock).endswith(b"Healthy\n")
        assert time.monotonic() - start < 3


def test_a_client_that_does_not_read_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", 0.5)
    web = serve()
    with web.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.5)
        flood = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000_000
        with pytest.raises(OSError):  # noqa: PT011 - a time-out or a reset: the server stops reading requests
            sock.sendall(flood)
        assert web.ask(b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"Healthy\n")


def test_when_all_connections_are_taken_the_one_that_is_missed_least_gives_way(serve: Serve) -> None:
    web = serve(max_connections=8)
    held = [web.connect() for _ in range(30)]
    for _ in range(3):
        assert web.ask(b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"Healthy\n")
    held[0].settimeout(5)
    assert read_all(held[0]) == b""
    for sock in held:
        sock.close()


def test_an_answer_that_hangs_is_given_up_and_its_late_result_dropped(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    web = serve()
    with web.connect() as sock:
        sock.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert web.ask(b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
        status, _, body = split(read_all(sock))
        assert (status, body) == (503, b"The exporter took too long to answer.\n")
    web.collector.blocked.set()
    assert web.ask(b"GET /slow HTTP/1.0\r\n\r\n").endswith(b"late")


def test_a_client_that_leaves_before_its_answer_does_no_harm(serve: Serve) -> None:
    web = serve()
    for _ in range(20):
        with web.connect() as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert web.ask(b"GET /-/healthy HTTP/1.0\r\n\r\n").endswith(b"Healthy\n")


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_give_a_request_a_refusal_or_a_wait_however_they_are_cut(data: bytes, step: int) -> None:
    def outcome(pieces: list[bytes]) -> list[object]:
        buffer, found = bytearray(), list[object]()
        for piece in pieces:
            buffer += piece
            try:
                while (request := http.take_request(buffer)) is not None:
                    found.append(request)
            except http.BadRequestError as error:
                return [*found, error.status]
        return found

    data += b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert outcome([data]) == outcome([data[i : i + step] for i in range(0, len(data), step)])


@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_any_accept_header_is_one_of_a_few_forms(header: str) -> None:
    forms = {"", "application/openmetrics-text"} | {
        f"{media};version=1.0.0{suffix}" for media in (negotiation.OPENMETRICS, negotiation.TEXT)
        for suffix in ("", *(f";escaping={escaping}" for escaping in negotiation.ESCAPINGS))}
    assert negotiation.canonical_accept(header) in forms
    negotiation.gzip_accepted(header)
