"""Reads one ``/metrics``: from a URL, a file or standard input; plain or gzip."""

from __future__ import annotations

import gzip
import io
import re
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from k3observe.live.exposition import Exposition, SourceError, parse

MAX_BYTES = 64 << 20
"""Of the body after decompression; the largest exposition seen is 30 MB."""
MAX_SECONDS = 30.0

_HOST_PORT = re.compile(r"^(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/.*)?$")


def read(
    source: str, wanted: Callable[[str], bool], stdin: IO[bytes] | None = None, ca_file: Path | None = None
) -> Exposition:
    """Read ``source`` (a URL, ``host:port``, a file, or ``-``), keeping samples whose name ``wanted`` accepts.

    ``ca_file`` holds authorities that are trusted beside the public ones. Raises SourceError when it cannot be read, is
    no exposition, is cut short or exceeds the limits.
    """
    if source == "-":
        if stdin is None:
            raise SourceError("-: there is no standard input: pipe an exposition into it")
        return parse(_bounded(stdin, "-"), "-", wanted)
    if "://" not in source and (Path(source).exists() or not _HOST_PORT.match(source)):
        try:
            with Path(source).open("rb") as file:
                return parse(_bounded(file, source), source, wanted)
        except OSError as error:
            what = error.strerror or type(error).__name__
            raise SourceError(f"{source}: cannot be read: {what}: give a file, a URL or -") from None
    url = metrics_url(source)
    return parse(_fetched(url, ca_file), source, wanted, url)


def metrics_url(source: str) -> str:
    """The URL of a source; without a path it is ``/metrics``, without a scheme http. SourceError when it is none."""
    text = source if "://" in source else f"http://{source}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise SourceError(f"{source}: is no URL: write it like http://host:8000/metrics") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SourceError(f"{source}: is no URL: write it like http://host:8000/metrics")
    return text if parts.path not in ("", "/") else parts._replace(path="/metrics").geturl()


def answer(url: str, limit: int, seconds: float, ca_file: Path | None = None) -> bytes:
    """The body of a small answer such as ``/version``. Raises OSError (of which requests' errors are) or ValueError."""
    with _session(url, ca_file).get(url, stream=True, timeout=seconds) as response:
        if response.status_code != 200:
            raise ValueError(f"answered {response.status_code}")
        body: bytes = response.raw.read(limit, decode_content=True)
        return body


def _session(url: str, ca_file: Path | None):  # type: ignore[no-untyped-def]  # requests is slow to import
    import requests
    from requests.adapters import HTTPAdapter

    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise SourceError(f"--ca-file: {ca_file}: cannot be used: {error.strerror or error}") from None
    # Prometheus verifies certificates without the extensions that Python asks for since 3.13
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT

    class Verifying(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options, ssl_context=context)

    session = requests.Session()
    session.mount("https://", Verifying())
    session.trust_env = urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")  # no proxy to this machine
    return session


def _fetched(url: str, ca_file: Path | None) -> Iterator[bytes]:
    import requests
    import urllib3

    headers = {"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "Accept-Encoding": "gzip"}
    deadline = time.monotonic() + MAX_SECONDS
    try:
        with _session(url, ca_file).get(url, headers=headers, stream=True, timeout=(5, 15)) as response:
            if response.status_code != 200:
                hint = "is this the path of the metrics?" if response.status_code == 404 else "see its log"
                raise SourceError(f"{url}: answered {response.status_code} {response.reason}: {hint}")
            if "html" in response.headers.get("Content-Type", ""):
                raise SourceError(f"{url}: is a web page, not metrics: give the URL of /metrics")
            raw = response.raw
            raw.decode_content = False
            for piece in _bounded(raw, url):
                if time.monotonic() > deadline:
                    raise SourceError(f"{url}: did not end within {MAX_SECONDS:.0f} s: is it overloaded?")
                yield piece
    except requests.RequestException as error:
        cause = _cause(error)
        hint = "name its authority with --ca-file" if "certificate" in cause else "is the address right?"
        raise SourceError(f"{url}: cannot be reached: {cause}: {hint}") from None
    except (OSError, urllib3.exceptions.HTTPError) as error:
        raise SourceError(f"{url}: broke off: {error}: try again") from None


def _cause(error: BaseException) -> str:
    text = str(error)
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)|(timed out|[Cc]ertificate verify failed|certificate[^'\")]*)", text)
    return next((part for part in (found.groups() if found else ()) if part), type(error).__name__)


def _bounded(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Pieces of a body, unpacked if it is gzip; SourceError when it is too large or its gzip is broken."""
    first = file.read(2)
    body = _Prefixed(first, file)
    stream: _Prefixed | gzip.GzipFile = body
    if first == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=body)
    total = 0
    while True:
        try:
            piece = stream.read(1 << 16)
        except EOFError:
            raise SourceError(f"{name}: is cut short: the gzip data ends too early: capture it again") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(f"{name}: is broken gzip: {error}: capture it again") from None
        if not piece:
            return
        total += len(piece)
        if total > MAX_BYTES:
            raise SourceError(f"{name}: is larger than {MAX_BYTES >> 20} MiB: is it an exposition?")
        yield piece


class _Prefixed(io.RawIOBase):
    """A stream with bytes put back in front of it."""

    def __init__(self, prefix: bytes, rest: IO[bytes]) -> None:
        self._prefix = prefix
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._prefix:
            found, self._prefix = self._prefix, b""
            return found
        return self._rest.read(size) or b""
