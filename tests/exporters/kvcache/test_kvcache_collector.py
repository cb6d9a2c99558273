from __future__ import annotations

import logging
import threading
import time

from prometheus_client import generate_latest

from k3observe.exporters.fetch import endpoint
from k3observe.exporters.kvcache.collector import KvCacheCollector
from tests.exporters.exporter_process import wait_until


def test_a_poll_that_hangs_where_no_timeout_reaches_it_leaves_no_stale_values() -> None:
    """Resolving a name can hang for minutes."""
    release, polls = threading.Event(), 0

    def read() -> bytes:
        nonlocal polls
        polls += 1
        if polls > 1:
            release.wait(10)
        return b"vllm:kv_cache_usage_perc 0.5\n"

    collector = KvCacheCollector(endpoint("http://engine:8000"), read, logging.getLogger("k3observe.test"), 0.05, 0.1)
    collector.start()

    def exposition() -> str:
        return generate_latest(collector).decode()

    wait_until(lambda: "k3_kv_cache_usage_ratio{" in exposition())
    wait_until(lambda: "k3_kv_cache_usage_ratio{" not in exposition())
    assert 'k3_source_up{collector="kv-cache",source="http://engine:8000/metrics"} 0.0' in exposition()
    assert 'reason="stalled",source="http://engine:8000/metrics"} 1.0' in exposition()
    release.set()
    time.sleep(0.1)
    wait_until(lambda: "k3_kv_cache_usage_ratio{" in exposition())
    collector.stop()
