"""One GET of an exposition or of a page of counts, bounded in time and size whatever the other side does."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple, cast
from urllib.parse import urlsplit

MAX_BYTES = 16 << 20
"""Of the body, received or unpacked; an engine of 20,000 lines has 3 MB. It is held a few times while it is read."""

_REMEDIES = {
    "connect": "check that something listens at this host and port",
    "timeout": "check host and port, or raise the timeout",
    "tls": "check scheme, certificate authority and the name in the certificate",
    "redirect": "give the address it leads to",
    "status": "check the path and what the server asks of its clients",
    "too_large": "check the path",
    "format": "check the path",
    "protocol": "check that HTTP is spoken at this port",
}
REASONS = tuple(_REMEDIES)
_CHUNK = 256 * 1024


class FetchError(Exception):
    """A failed fetch; ``reason`` is one of REASONS."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason

    @property
    def told(self) -> str:
        """What went wrong and what to do."""
        return f"cannot be read: {self}: {_REMEDIES[self.reason]}"


class Endpoint(NamedTuple):
    """A parsed URL; ``target`` is its path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def url(self) -> str:
        """The address as it was given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.target}"


def endpoint(url: str) -> Endpoint:
    """Parse an http or https URL; without a path it is /metrics. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.hostname.isprintable():
        raise ValueError(f"{url!r} is no http:// or https:// URL")
    if port == 0:
        raise ValueError(f"{url!r}: port 0 is none")
    if parts.username is not None:  # and not shown: a password stands beside it
        raise ValueError(f"{parts.scheme}://...@{parts.hostname}: user names are not supported")
    if parts.fragment:
        raise ValueError(f"{url!r}: fragments are not supported")
    target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or not target.isprintable() or " " in target:
        raise ValueError(f"{url!r}: the path must be printable ASCII, percent-encoded")
    return Endpoint(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), target)


def client_context(
    ca_file: Path | None, insecure: bool, cert_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS context: the system's authorities or those of a file, or no verification at all.

    Raises ValueError when a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ValueError) as error:
        raise ValueError(f"certificate authority {ca_file}: {_unusable(error)}") from None
    # Python 3.13 began to ask of certificates what those of private authorities, MindIE's say, often lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file:
        try:
            context.load_cert_chain(cert_file, key_file, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise ValueError(f"client certificate {cert_file}: {_unusable(error)}") from None
    return context


def _unusable(error: Exception) -> str:
    remedy = "check the path, and that it holds PEM" if isinstance(error, OSError) else "it must hold PEM"
    return f"cannot be used: {getattr(error, 'strerror', None) or error}: {remedy}"


def fetch(
    to: Endpoint,
    timeout: float,
    context: ssl.SSLContext | None = None,
    server_name: str | None = None,
    max_bytes: int = MAX_BYTES,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the body. ``timeout`` bounds the whole exchange, not each read of it. Raises FetchError."""
    deadline = time.monotonic() + timeout
    try:
        # As bytes: for text Python loads the tables of internationalised names, a megabyte of memory.
        host = cast("str", to.host.encode() if to.host.isascii() else to.host)
        sock = socket.create_connection((host, to.port), timeout=timeout)
    except TimeoutError:
        raise FetchError("timeout", f"no connection within {timeout:g} s") from None
    except OSError as error:
        raise FetchError("connect", error.strerror or str(error)) from None
    try:
        if context is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock = context.wrap_socket(sock, server_hostname=server_name or to.host)
        return _exchange(sock, to, deadline, max_bytes, headers or {})
    except TimeoutError:
        raise FetchError("timeout", f"not answered within {timeout:g} s") from None
    except ssl.SSLError as error:
        raise FetchError("tls", getattr(error, "verify_message", "") or error.reason or str(error)) from None
    except OSError as error:
        raise FetchError("connect", error.strerror or str(error)) from None
    except (http.client.HTTPException, ValueError) as error:
        raise FetchError("protocol", f"{type(error).__name__}: {error}"[:200]) from None
    finally:
        sock.close()


class _DeadlineReader(io.RawIOBase):
    """Reads a socket; every read gets only what is left of the time for all of them."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


class _DeadlineSocket:
    """What http.client needs of a socket."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, _mode: str) -> IO[bytes]:
        return io.BufferedReader(_DeadlineReader(self._sock, self._deadline), _CHUNK)

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def close(self) -> None:
        """The fetch closes the socket itself."""


def _exchange(
    sock: socket.socket, to: Endpoint, deadline: float, max_bytes: int, headers: Mapping[str, str]
) -> bytes:
    connection = http.client.HTTPConnection(to.host, to.port)
    connection.sock = cast("socket.socket", _DeadlineSocket(sock, deadline))
    connection.request("GET", to.target, headers={
        "Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "Connection": "close",
        "User-Agent": "k3observe-exporter", **headers})
    with connection.getresponse() as response:
        if 300 <= response.status < 400:
            raise FetchError("redirect", f"status {response.status}: redirects are not followed")
        if response.status != 200:
            raise FetchError("status", f"status {response.status}")
        if "protobuf" in response.headers.get("Content-Type", ""):
            raise FetchError("format", "answered in protobuf, which was not asked for")
        if "html" in response.headers.get("Content-Type", ""):
            raise FetchError("format", "answered with a web page, not with metrics")
        coding = response.headers.get("Content-Encoding", "identity").strip().lower()
        framing = response.headers.get("Transfer-Encoding", "chunked").strip().lower()
        if coding not in ("identity", "gzip") or framing not in ("chunked", "identity"):
            raise FetchError("format", f"encoding {coding!r}, {framing!r} was not asked for")
        return _body(response, gzip=coding == "gzip", max_bytes=max_bytes)


def _body(response: http.client.HTTPResponse, *, gzip: bool, max_bytes: int) -> bytes:
    body = bytearray()
    unpack = _Gunzip(max_bytes) if gzip else None
    while chunk := response.read1(_CHUNK):
        body += unpack(chunk, len(body)) if unpack is not None else chunk
        if len(body) > max_bytes:
            raise FetchError("too_large", f"more than {max_bytes} bytes")
    if unpack is not None and not unpack.complete:
        raise FetchError("protocol", "the body ends early")
    if response.length:
        raise FetchError("protocol", f"the body ends early: {response.length} bytes are missing")
    return bytes(body)


class _Gunzip:
    """Unpacks gzip, of several members too, to at most ``max_bytes`` in all."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def complete(self) -> bool:
        """Whether the last member has ended."""
        return self._unpacker.eof

    def __call__(self, chunk: bytes, size: int) -> bytes:
        """Return what ``chunk`` adds to the ``size`` bytes unpacked so far. Raises FetchError."""
        unpacked = b""
        while chunk:
            if self._unpacker.eof:
                self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
            try:
                unpacked += self._unpacker.decompress(chunk, self._max_bytes + 1 - size - len(unpacked))
            except zlib.error as error:
                raise FetchError("format", f"broken gzip: {error}") from None
            if self._unpacker.unconsumed_tail or size + len(unpacked) > self._max_bytes:
                raise FetchError("too_large", f"more than {self._max_bytes} bytes")
            chunk = self._unpacker.unused_data
        return unpacked
