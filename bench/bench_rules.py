"""Goal 10: rule evaluation of 200 simulated engines in 20 services on a real Prometheus, and the series it records.

All engines answer with the same exposition, which is written anew every second: what is measured is Prometheus.
"""

from __future__ import annotations

import re
import selectors
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from measure import leave

from k3observe import bundle
from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.loader import loads
from k3observe.drill import servers, stack
from k3observe.drill.advance import Replay
from k3observe.drill.binaries import find
from k3observe.drill.exposition import write
from k3observe.drill.replay import load
from k3observe.drill.traffic import Load, traffic
from k3observe.plan import plan
from k3observe.render.bundle import render
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

SERVICES, ENGINES, INTERVAL = 20, 10, 15
SHARE = 0.10
PER_ENGINE, PER_SERVICE = 60, 120


class Engines:
    """Listens on a port an engine; one thread answers all of them."""

    def __init__(self, count: int, replay: Replay) -> None:
        self._replay = replay
        self._selector = selectors.DefaultSelector()
        self._listeners = [socket.create_server(("127.0.0.1", 0), backlog=16) for _ in range(count)]
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        self.addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners]
        self._done = threading.Event()

    def run(self) -> None:
        """Answer until ``close``."""
        body, written = b"", 0.0
        while not self._done.is_set():
            for key, _ in self._selector.select(0.2):
                if time.monotonic() - written > 1:
                    body, written = write(self._replay.families(), "text", "colon").encode(), time.monotonic()
                assert isinstance(key.fileobj, socket.socket)
                connection, _ = key.fileobj.accept()
                with connection:
                    connection.settimeout(2)
                    connection.recv(65536)
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
                    connection.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode() + body)

    def close(self) -> None:
        """Stop."""
        self._done.set()


@contextmanager
def engines() -> Iterator[list[str]]:
    """Run them all; yield their addresses."""
    replay = load(stack.ENGINES / "vllm-0.33.prom")
    traffic(replay, "vllm", Load())
    running = Engines(SERVICES * ENGINES, replay)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        yield running.addresses
    finally:
        running.close()
        thread.join()


def configuration(addresses: list[str]) -> str:
    """Twenty services alike: rules are shared."""
    services: list[dict[str, Any]] = [
        {"name": f"service-{n:02}", "model": {"preset": "kimi-k3"},
         "engine": {"name": "vllm", "version": "0.33", "args": {"prefix_caching": True, "max_num_seqs": 16}},
         "targets": addresses[n * ENGINES : (n + 1) * ENGINES]}
        for n in range(SERVICES)]  # fmt: skip
    return to_yaml({
        "version": 1, "stack": "bench", "services": services,
        "prometheus": {"version": "3.5", "scrape_interval": f"{INTERVAL}s", "scrape_timeout": "10s",
                       "evaluation_interval": f"{INTERVAL}s"},
    })  # fmt: skip


def durations(prometheus: servers.Server) -> dict[str, float]:
    """How long the last evaluation of each group took."""
    with urllib.request.urlopen(f"{prometheus.url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^prometheus_rule_group_last_duration_seconds\{rule_group="([^"]+)"\} (\S+)$', text, re.M)
    return {name.rpartition(";")[2]: float(value) for name, value in found}


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as everything:
        folder = Path(name)
        addresses = everything.enter_context(engines())
        made = plan(loads(configuration(addresses), "bench"), load_catalogue([]), load_rules())
        bundle.write(folder / "bundle", render(made))
        prometheus = everything.enter_context(servers.prometheus(
            find("prometheus").path, folder / "bundle/prometheus/prometheus.yml", folder))  # fmt: skip
        up = f"count(up == 1) == {SERVICES * ENGINES}"
        servers.wait_until(lambda: prometheus.query(up), "all engines scraped", 60)
        time.sleep(3 * INTERVAL)  # rates need two scrapes, what builds on them another evaluation
        sums = []
        for _ in range(3):
            time.sleep(INTERVAL)
            sums.append(sum(durations(prometheus).values()))
        worst = max(durations(prometheus).items(), key=lambda item: item[1])
        recorded = int(prometheus.query('count({__name__=~"k3:.+"})')[0]["value"][1])
        failed = [rule["name"] for group in prometheus.get_json("/api/v1/rules")["data"]["groups"]
                  for rule in group["rules"] if rule["health"] == "err"]  # fmt: skip
    spent, limit = statistics.median(sums), SHARE * INTERVAL
    most = PER_ENGINE * SERVICES * ENGINES + PER_SERVICE * SERVICES
    print(f"{'ok  ' if spent <= limit else 'MISS'} goal 10: evaluation of all groups {spent:.3f} s of {INTERVAL} s, "
          f"{spent / INTERVAL:.2%} (at most {SHARE:.0%}); the longest group {worst[0]} {worst[1]:.3f} s")  # fmt: skip
    print(f"{'ok  ' if recorded <= most else 'MISS'} goal 10: {recorded} recorded series of {SERVICES * ENGINES} "
          f"engines in {SERVICES} services, at most {most}")  # fmt: skip
    print(f"{'ok  ' if not failed else 'MISS'} goal 10: {len(failed)} rules fail {sorted(set(failed))[:5]}")
    leave([spent <= limit, recorded <= most, not failed])


if __name__ == "__main__":
    main()
