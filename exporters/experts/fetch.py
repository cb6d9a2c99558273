"""One HTTP GET, bounded in time and size: of an engine, of a file of counts, of another sidecar."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit


class FetchError(OSError):
    """A page that could not be had: refused, late, too large, or with another status than 200."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches ``http`` and ``https`` pages without redirects, proxies or cookies.

    ``seconds`` bounds the whole exchange, however slowly the other side answers. ``ca_file`` is the authority that
    servers are verified against, the system's where it is None. ``authorization_file`` holds the value of the header
    ``Authorization``; it is read at each request, so that it can be rotated.
    """

    seconds: float
    max_bytes: int
    ca_file: Path | None = None
    authorization_file: Path | None = None

    def get(self, url: str) -> bytes:
        """Return the body. Raises FetchError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FetchError(f"{url!r} is no http or https URL")
        connection: HTTPConnection
        try:
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=self.ca_file)
                connection = HTTPSConnection(parts.hostname, parts.port, timeout=self.seconds, context=context)
            else:
                connection = HTTPConnection(parts.hostname, parts.port, timeout=self.seconds)
            headers = {"Connection": "close", "Accept-Encoding": "identity"}
            if self.authorization_file is not None:
                headers["Authorization"] = self.authorization_file.read_text().strip()
            connection.connect()
        except (OSError, ValueError) as error:
            raise FetchError(f"{url}: {error}") from None
        # A timeout of the socket bounds each read, not their sum: a slow drip is cut off by closing the socket.
        late = threading.Event()
        timer = threading.Timer(self.seconds, _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise FetchError(f"{url}: status {response.status}")
            body = response.read(self.max_bytes + 1)
        except (OSError, ValueError, HTTPException) as error:
            if late.is_set():
                raise FetchError(f"{url}: no complete answer within {self.seconds:g} s") from None
            raise error if isinstance(error, FetchError) else FetchError(f"{url}: {error!r}") from None
        finally:
            timer.cancel()
            connection.close()
        if late.is_set():
            raise FetchError(f"{url}: no complete answer within {self.seconds:g} s")
        if len(body) > self.max_bytes:
            raise FetchError(f"{url}: more than {self.max_bytes} bytes")
        return body


def _cut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed at the same moment
