"""The collector kv-cache: polls the engine's /metrics and serves usage, lookups, hits and hit ratios."""

from __future__ import annotations

import argparse
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import Metric

from k3observe.exporters import families
from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.exposition import Reader, help_of
from k3observe.exporters.fetch import (
    REASONS,
    Endpoint,
    FetchError,
    client_context,
    endpoint,
    fetch,
)
from k3observe.exporters.flags import checked, duration
from k3observe.exporters.kvcache.counters import Counters, Totals
from k3observe.exporters.kvcache.engines import NAMES, EngineReading, normalise

_MAX_FOLLOWED = 1024


class _Row(NamedTuple):
    reading: EngineReading
    totals: Totals | None
    ratios: dict[str, float]


class _Snapshot(NamedTuple):
    time: float
    rows: tuple[_Row, ...]


class KvCacheCollector:
    """Polls one engine in a thread of its own; a scrape serves the last poll, and nothing when that failed."""

    name = "kv-cache"

    def __init__(
        self,
        to: Endpoint,
        read: Callable[[], bytes],
        log: logging.Logger,
        interval: float,
        timeout: float,
    ) -> None:
        self._read, self._url = read, to.url
        self._log = log
        self._interval = interval
        self._stale_after = 2 * interval + timeout
        self._status = SourceStatus(self.name, to.url, (*REASONS, "malformed", "implausible", "stalled", "internal"))
        self._reader = Reader(NAMES)
        self._counters: dict[tuple[str, str], Counters] = {}
        self._snapshot: _Snapshot | None = None
        self._complaint = ""
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start polling."""
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def stop(self) -> None:
        """Ask the polling to end."""
        self._stopping.set()

    def ready(self) -> bool:
        """Whether a poll has ended."""
        return self._status.tried

    def collect(self) -> Iterable[Metric]:
        """Yield what the last poll gave."""
        snapshot = self._snapshot
        if snapshot is not None and time.monotonic() - snapshot.time > self._stale_after:
            self._snapshot = snapshot = None  # the poll hangs where no timeout reaches it: resolving a name
            self._status.failed("stalled")
        usage, queries, hits, ratio = (
            family.new() for family in
            (families.KV_USAGE, families.KV_QUERIES, families.KV_HITS, families.KV_HIT_RATIO))
        for reading, totals, ratios in snapshot.rows if snapshot else ():
            labels = (reading.model_name, reading.engine)
            if reading.usage is not None:
                usage.add_metric(labels, reading.usage)
            if totals is not None and reading.unit is not None:
                queries.add_metric(labels, totals.queries * reading.unit)
                for tier, value in sorted(totals.hits.items()):
                    hits.add_metric((*labels, tier), value * reading.unit)
            for window, value in ratios.items():
                ratio.add_metric((*labels, window), value)
        yield from (usage, queries, hits, ratio)
        yield from source_families([self._status])

    def poll(self) -> None:
        """Read the engine once and keep what it says."""
        start = time.monotonic()
        try:
            body = self._read()
        except FetchError as error:
            self._snapshot = None
            self._status.failed(error.reason, time.monotonic() - start)
            self._say(f"{self._url}: {error.told}")
            return
        reading = self._reader.read(body)
        engines = normalise(reading.samples, partial(help_of, body))
        now = time.monotonic()
        rows = tuple(self._row(now, engine, engines.start_time) for engine in engines.engines)
        self._snapshot = _Snapshot(now, rows)
        self._status.succeeded(now - start)
        for reason, count in (("malformed", reading.malformed), ("implausible", engines.implausible)):
            if count:
                self._status.failed(reason, down=False)
        self._say("" if rows else "the engine's metrics hold nothing of a KV cache that is known")

    def _row(self, now: float, reading: EngineReading, start_time: float | None) -> _Row:
        key = (reading.model_name, reading.engine)
        if reading.queries is None:
            return _Row(reading, None, {})
        counters = self._counters.pop(key) if key in self._counters else Counters(self._interval)
        self._counters[key] = counters
        if len(self._counters) > _MAX_FOLLOWED:
            del self._counters[next(iter(self._counters))]  # the one that was not seen for longest
        totals = counters.add(now, reading.queries, reading.hits, start_time)
        return _Row(reading, totals, counters.ratios() if reading.hits else {})

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            try:
                self.poll()
            except Exception:  # the thread must live on; a bug in one reading must not end all of them
                self._snapshot = None
                self._status.failed("internal")
                self._log.exception("a reading of the engine failed")
            due = max(due + self._interval, time.monotonic())

    def _say(self, complaint: str) -> None:
        """Log a change of state, not each poll."""
        if complaint and complaint != self._complaint:
            self._log.warning("%s", complaint)
        elif self._complaint and not complaint:
            self._log.info("the engine is read again")
        self._complaint = complaint


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this collector."""
    add = parser.add_argument_group("kv-cache").add_argument
    add("--kv-cache.url", dest="kv_cache_url", type=checked(endpoint), default="http://127.0.0.1:8000/metrics",
        metavar="URL", help="The engine's metrics.")
    add("--kv-cache.interval", dest="kv_cache_interval", type=duration(0.1, 60), default=5.0,
        metavar="DURATION", help="Time from one reading to the next.")
    add("--kv-cache.timeout", dest="kv_cache_timeout", type=duration(0.1, 60), default=4.0,
        metavar="DURATION", help="Time for a whole reading.")
    add("--kv-cache.ca-file", dest="kv_cache_ca_file", type=Path, metavar="FILE",
        help="Certificate authority of an https engine; without it those of the system.")
    add("--kv-cache.cert-file", dest="kv_cache_cert_file", type=Path, metavar="FILE",
        help="Client certificate, where the engine asks for one; may hold the key too.")
    add("--kv-cache.key-file", dest="kv_cache_key_file", type=Path, metavar="FILE",
        help="Key of the client certificate.")
    add("--kv-cache.server-name", dest="kv_cache_server_name", metavar="NAME",
        help="Name in the engine's certificate, where it is not the host of the URL.")
    add("--kv-cache.insecure-skip-verify", dest="kv_cache_insecure_skip_verify", action="store_true",
        help="Do not verify the engine's certificate.")


def from_args(args: argparse.Namespace, log: logging.Logger) -> KvCacheCollector:
    """Return the collector that the flags describe. Raises ValueError."""
    to: Endpoint = args.kv_cache_url
    context: ssl.SSLContext | None = None
    if to.scheme == "https":
        if args.kv_cache_key_file and not args.kv_cache_cert_file:
            raise ValueError("--kv-cache.key-file: needs --kv-cache.cert-file")
        context = client_context(
            args.kv_cache_ca_file, args.kv_cache_insecure_skip_verify, args.kv_cache_cert_file,
            args.kv_cache_key_file)
    read = partial(fetch, to, args.kv_cache_timeout, context, args.kv_cache_server_name)
    return KvCacheCollector(to, read, log, args.kv_cache_interval, args.kv_cache_timeout)
