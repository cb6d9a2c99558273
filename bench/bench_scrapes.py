"""Goal 3: 50 simultaneous scrapes of 1,000 samples, beside prometheus_client's own server."""

from __future__ import annotations

import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measure import interleaved, lax_factor, leave, report

SCRAPES, SAMPLES, SLOWEST, GROWTH = 50, 1000, 0.5, 1.10

COLLECTOR = f"""
import sys, time
from prometheus_client.core import GaugeMetricFamily
class Thousand:
    name = "gpu"
    def start(self): pass
    def stop(self): pass
    def ready(self): return True
    def collect(self):
        family = GaugeMetricFamily("k3_accelerator_temperature_celsius", "Temperature.", labels=("device", "uuid"))
        for number in range({SAMPLES}):
            family.add_metric((str(number % 8), "GPU-%08d" % number), 40 + number / 8)
        yield family
"""
OURS = COLLECTOR + """
import types
from k3observe.exporters import flags
from k3observe.exporters.main import main
flags.collector_module = lambda name: types.SimpleNamespace(
    add_flags=lambda parser: None, from_args=lambda args, log: Thousand())
main(["--collect=gpu", "--web.listen-address=127.0.0.1:0"])
"""
THEIRS = COLLECTOR + """
from prometheus_client import CollectorRegistry, start_http_server
registry = CollectorRegistry()
registry.register(Thousand())
server, thread = start_http_server(0, "127.0.0.1", registry)
print("listening on 127.0.0.1:%d" % server.server_port, file=sys.stderr, flush=True)
thread.join()
"""
REQUEST = (b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip\r\n"
           b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n\r\n")


def storm(port: int, count: int) -> float:
    """Open all connections at once and return the seconds until the last answer is complete."""
    start = time.monotonic()
    selector = selectors.DefaultSelector()
    received: dict[socket.socket, int] = {}
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        selector.register(sock, selectors.EVENT_WRITE)
        received[sock] = 0
    slowest = 0.0
    while received:
        events = selector.select(60)
        assert events, "an answer did not come"
        for key, mask in events:
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if mask & selectors.EVENT_WRITE:
                sock.send(REQUEST)
                selector.modify(sock, selectors.EVENT_READ)
                continue
            data = sock.recv(1 << 20)
            received[sock] += len(data)
            if not data:
                assert received.pop(sock) > 5000, "an answer is not whole"
                selector.unregister(sock)
                sock.close()
                slowest = time.monotonic() - start
    return slowest


class Server:
    """A server under test in a process of its own."""

    def __init__(self, code: str) -> None:
        self._process = subprocess.Popen((sys.executable, "-c", code), stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        found = None
        while found is None:
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", self._process.stderr.readline())
        self.port = int(found[1])

    def peak(self) -> float:
        """Memory high-water mark in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return float(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1024

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Print slowest answer, ratio and growth; exit 1 on a miss."""
    ours, theirs = Server(OURS), Server(THEIRS)
    try:
        for server in (ours, theirs):
            for _ in range(5):
                storm(server.port, 1)
                time.sleep(0.1)
        time.sleep(0.6)
        before = ours.peak()
        slowest: list[float] = []

        def fresh(server: Server) -> Callable[[], float]:
            def measure() -> float:
                time.sleep(0.6)  # longer than the exposition is kept
                seconds = storm(server.port, SCRAPES)
                if server is ours:
                    slowest.append(seconds)
                return seconds

            return measure

        pair = interleaved(fresh(ours), fresh(theirs))
        growth = ours.peak() / before
        quick = max(slowest) <= SLOWEST * lax_factor()
        flat = growth <= GROWTH
        print(f"{'ok  ' if quick else 'MISS'} goal 3: slowest of all {max(slowest):.3f} s (at most {SLOWEST} s)")
        print(f"{'ok  ' if flat else 'MISS'} goal 3: memory high-water mark {growth:.3f} of before (at most {GROWTH})")
        leave([
            quick, flat,
            report("goal 3", f"slowest of {SCRAPES} scrapes", "start_http_server", pair, "ms", at_most=0.1)])
    finally:
        ours.stop()
        theirs.stop()


if __name__ == "__main__":
    main()
