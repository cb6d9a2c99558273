from __future__ import annotations

import gzip
import socket
import ssl
import time
import zlib
from collections.abc import Callable

import pytest

from k3observe.exporters.fetch import REASONS, Endpoint, FetchError, client_context, endpoint, fetch
from tests.exporters.exporter_process import Certificate, Engine

RunEngine = Callable[..., Engine]


def refused(engine: Engine, timeout: float = 5, **options: object) -> str:
    with pytest.raises(FetchError) as error:
        fetch(endpoint(engine.url), timeout, **options)  # type: ignore[arg-type]
    assert error.value.reason in REASONS
    return error.value.reason


def test_the_body_is_returned_and_nothing_that_costs_the_engine_is_asked_for(run_engine: RunEngine) -> None:
    engine = run_engine(b"a 1\n" * 100_000)
    assert fetch(endpoint(engine.url), 5) == engine.body
    request = engine.requests[0]
    assert request.startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Accept-Encoding: identity" in request
    assert b"Connection: close" in request


def test_a_chunked_body_and_an_unasked_gzip_are_read(run_engine: RunEngine) -> None:
    engine = run_engine()
    engine.serve = lambda sock: sock.sendall(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n")
    assert fetch(endpoint(engine.url), 5) == b"a 1\nb 2\n"
    engine.body = gzip.compress(b"a 1\n" * 1000)
    engine.serve = lambda sock: engine.answer(sock, "200 OK", "Content-Encoding: gzip")
    assert fetch(endpoint(engine.url), 5) == b"a 1\n" * 1000
    engine.serve = lambda sock: sock.sendall(b"HTTP/1.0 200 OK\r\n\r\na 1\n")
    assert fetch(endpoint(engine.url), 5) == b"a 1\n"


@pytest.mark.parametrize(("head", "reason"), [
    ("302 Found\r\nLocation: http://169.254.169.254/", "redirect"), ("301 Moved\r\nLocation: /x", "redirect"),
    ("404 Not Found", "status"), ("500 Oops", "status"), ("200 OK\r\nContent-Type: text/html", "format"),
    ("200 OK\r\nContent-Type: application/vnd.google.protobuf; encoding=delimited", "format"),
    ("206 Partial Content", "status"), ("401 Unauthorized", "status"), ("204 No Content", "status"),
    ("200 OK\r\nTransfer-Encoding: gzip, chunked", "format"),
    ("200 OK\r\nContent-Encoding: br", "format"), ("200 OK\r\nContent-Encoding: gzip", "format"),
    ("200 OK\r\nContent-Length: 99", "protocol"), ("nonsense", "protocol"),
    ("200 OK\r\nTransfer-Encoding: chunked", "protocol"), ("200 OK\r\n" + "A: b\r\n" * 200, "protocol"),
    ("200 OK\r\nA: " + "b" * 100_000, "protocol"),
])
def test_an_answer_that_is_no_exposition_is_refused_with_its_reason(
    run_engine: RunEngine, head: str, reason: str
) -> None:
    engine = run_engine()
    engine.serve = lambda sock: sock.sendall(f"HTTP/1.1 {head}\r\n\r\n".encode() + b"<html>")
    assert refused(engine) == reason
    assert len(engine.requests) == 1


def drip(start: bytes) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        sock.sendall(start)
        for _ in range(100):
            sock.sendall(b"x")
            time.sleep(0.1)

    return serve


@pytest.mark.parametrize("start", [
    b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"])
def test_a_dripping_answer_is_given_up_at_the_deadline(run_engine: RunEngine, start: bytes) -> None:
    engine = run_engine()
    engine.serve = drip(start)
    begin = time.monotonic()
    assert refused(engine, 0.6) == "timeout"
    assert time.monotonic() - begin < 1.5


def test_an_endless_body_and_a_gzip_bomb_are_given_up_at_the_size_limit(run_engine: RunEngine) -> None:
    engine = run_engine()

    def endless(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            sock.sendall(b"a 1\n" * 10_000)

    engine.serve = endless
    assert refused(engine, 10, max_bytes=1 << 20) == "too_large"
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    engine.body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    engine.serve = lambda sock: engine.answer(sock, "200 OK", "Content-Encoding: gzip")
    assert len(engine.body) < 100_000
    assert refused(engine, 10, max_bytes=1 << 20) == "too_large"
    assert fetch(endpoint(engine.url), 10, max_bytes=64 << 20) == bytes(64 << 20)


def test_a_port_nobody_listens_on_is_refused(run_engine: RunEngine) -> None:
    engine = run_engine()
    port = engine.port
    engine.close()
    with pytest.raises(FetchError, match="refused") as error:
        fetch(Endpoint("http", "127.0.0.1", port, "/metrics"), 1)
    assert error.value.reason == "connect"


def test_https_is_verified_with_the_given_authority_or_explicitly_not_at_all(
    run_engine: RunEngine, certify: Callable[[str], Certificate]
) -> None:
    def server(host: str) -> Engine:
        files = certify(host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        return run_engine(b"a 1\n", context)

    ca = certify("x").ca
    good, other = server("127.0.0.1"), server("mindie.internal")
    assert fetch(endpoint(good.url), 5, client_context(ca, False)) == b"a 1\n"
    assert refused(good, context=client_context(None, False)) == "tls"
    assert refused(other, context=client_context(ca, False)) == "tls"
    assert fetch(endpoint(other.url), 5, client_context(ca, False), "mindie.internal") == b"a 1\n"
    assert fetch(endpoint(other.url), 5, client_context(None, True)) == b"a 1\n"
    with pytest.raises(ValueError, match="/nonexistent: cannot be used"):
        client_context(type(ca)("/nonexistent"), False)
    plain = run_engine(b"a 1\n")
    assert refused(plain, 0.5, context=client_context(None, True)) in ("tls", "timeout", "connect")


def test_an_engine_that_asks_for_a_client_certificate_gets_it(
    run_engine: RunEngine, certify: Callable[[str], Certificate]
) -> None:
    files, client = certify("127.0.0.1"), certify("sidecar")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    engine = run_engine(b"a 1\n", context)
    assert fetch(endpoint(engine.url), 5, client_context(files.ca, False, client.cert, client.key)) == b"a 1\n"
    assert refused(engine, context=client_context(files.ca, False)) in ("tls", "connect", "protocol")


@pytest.mark.parametrize(("url", "target"), [
    ("http://127.0.0.1:8000", "/metrics"), ("http://127.0.0.2:1027/metrics?x=1", "/metrics?x=1"),
    ("https://[::1]:8443/m", "/m")])
def test_an_address_is_kept_as_it_was_given(url: str, target: str) -> None:
    to = endpoint(url)
    assert to.target == target
    assert to.url.startswith(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/", "http://", "http://a:b@c/", "http://x:99999/",
                                 "http://x/a b", "http://x/\r\nHost: y", "file:///etc/passwd", "http://[::1/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"http|supported|port|ASCII|IPv6"):
        endpoint(url)


def test_gzip_of_several_members_is_read_whole_and_what_is_no_gzip_behind_it_ends_the_fetch(
    run_engine: RunEngine
) -> None:
    engine = run_engine(gzip.compress(b"a 1\n") + gzip.compress(b"b 2\n"))
    engine.serve = lambda sock: engine.answer(sock, "200 OK", "Content-Encoding: gzip")
    assert fetch(endpoint(engine.url), 5) == b"a 1\nb 2\n"
    engine.body += gzip.compress(bytes(1 << 20))
    assert refused(engine, max_bytes=1 << 20) == "too_large"

    def endless(sock: socket.socket) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"a 1\n"))
        while True:
            sock.sendall(bytes(1 << 16))

    engine.serve = endless
    assert refused(engine) == "format"


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="user names") as error:
        endpoint("http://root:secret@engine:8000/metrics")
    assert "secret" not in str(error.value)
