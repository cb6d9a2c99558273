"""The encoded exposition, kept for a moment: many scrapers at once cost one rendering a format."""

from __future__ import annotations

import threading
import time
import zlib
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder

from k3observe.exporters.registry import Registry
from k3observe.exporters.web.http import Response

VALID_SECONDS = 0.5
GZIP_LEVEL = 1


class _Snapshot(NamedTuple):
    until: float
    plain: Response
    gzip: Response


class Snapshots:
    """Expositions by format (a canonical Accept header) and encoding."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._kept: dict[str, _Snapshot] = {}

    def fresh(self, accept: str, gzip: bool) -> Response | None:
        """Return the kept exposition if it is still valid, without ever waiting."""
        snapshot = self._kept.get(accept)
        if snapshot is None or snapshot.until < time.monotonic():
            return None
        return snapshot.gzip if gzip else snapshot.plain

    def render(self, accept: str, gzip: bool) -> Response:
        """Return the kept exposition or a new one; of several callers one renders and the others wait for it."""
        with self._lock:
            kept = self.fresh(accept, gzip)
            if kept is not None:
                return kept
            encoder, content_type = choose_encoder(accept)
            body = self._registry.encode(encoder)
            vary = ("Vary", "Accept, Accept-Encoding")
            snapshot = _Snapshot(
                time.monotonic() + VALID_SECONDS,
                Response(200, content_type, body, (vary,)),
                Response(200, content_type, _gzip(body), (("Content-Encoding", "gzip"), vary)))
            self._kept[accept] = snapshot
            return snapshot.gzip if gzip else snapshot.plain


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()
