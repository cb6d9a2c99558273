"""What a replica costs Prometheus: series, samples a second, memory, rule evaluation. The numbers of docs/scale.md.

A real engine exposition and a real sidecar's are served on as many addresses as there are replicas, and scraped with
the rendered configuration: ``python bench/bench_scale.py [REPLICAS...]`` (default 10 and 100).
"""

from __future__ import annotations

import selectors
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from k3observe.cli.stack import load_plan
from k3observe.drill import servers, stack
from k3observe.drill.binaries import find
from k3observe.render.bundle import render

INTERVAL, SECONDS = 5, 60


@contextmanager
def pages(body: bytes, count: int) -> Iterator[list[str]]:
    """Serve the same page on so many addresses of this machine."""
    answer = (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\nContent-Length: "
              + str(len(body)).encode() + b"\r\n\r\n" + body)  # fmt: skip
    chooser, listeners = selectors.DefaultSelector(), []
    for _ in range(count):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        chooser.register(listener, selectors.EVENT_READ)

    def serve() -> None:
        while True:
            for key, _ in chooser.select():
                connection, _ = key.fileobj.accept()
                with connection:
                    connection.settimeout(5)
                    connection.recv(4096)
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]


def captured(folder: Path) -> tuple[bytes, bytes, dict]:
    """A page of the engine and of its sidecar after a while of traffic, and their service."""
    with stack.vllm(folder, replicas=1) as service:
        node = service.nodes[0]
        time.sleep(25)
        bodies = []
        for url in (node.engine.url, f"http://{node.sidecar}/metrics"):
            with urllib.request.urlopen(url, timeout=10) as answer:
                bodies.append(answer.read())
        # the demonstration also exports each layer, which is off by default
        default = [line for line in bodies[1].splitlines(keepends=True) if not line.startswith(b"k3_expert_layer_")]
        return bodies[0], b"".join(default), service.config


def measure(replicas: int, engine: bytes, sidecar: bytes, service: dict, folder: Path) -> str:
    """One row of the table."""
    with pages(engine, replicas) as engines, pages(sidecar, replicas) as sidecars:
        config = {
            "version": 1, "stack": "k3", "prometheus": {
                "version": "3.5", "scrape_interval": f"{INTERVAL}s", "evaluation_interval": f"{INTERVAL}s"},
            "services": [{**service, "targets": engines, "sidecar": {**service["sidecar"], "targets": sidecars}}],
        }  # fmt: skip
        file = folder / "k3observe.yaml"
        file.write_text(yaml.safe_dump(config))
        for path, content in render(load_plan(file)[1]).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        binary = find("prometheus", "3.5").path
        with servers.prometheus(binary, folder / "prometheus" / "prometheus.yml", folder / "data") as server:
            time.sleep(SECONDS)
            one = {name: server.query(f"max(scrape_samples_post_metric_relabeling{{job='{job}'}})")
                   for name, job in (("engine", "k3-engine"), ("sidecar", "k3-sidecar"))}  # fmt: skip
            values = {name: int(float(rows[0]["value"][1])) for name, rows in one.items()}
            recorded = int(float(server.query('count({__name__=~"k3:.+"})')[0]["value"][1]))
            with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
                own = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[:1] != "#")
            series = int(float(own["prometheus_tsdb_head_series"]))
            memory = float(own["process_resident_memory_bytes"]) / 2**20
            rules = sum(float(value) for name, value in own.items()
                        if name.startswith("prometheus_rule_group_last_duration_seconds"))  # fmt: skip
    return (f"{replicas:8} {values['engine']:8} {values['sidecar']:8} {recorded / replicas:9.0f} {series:9} "
            f"{series / INTERVAL:10.0f} {memory:8.0f} {memory * 1024 / series:9.1f} {rules:8.2f}")  # fmt: skip


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine, sidecar, service = captured(folder / "capture")
        print(f"scraped and evaluated every {INTERVAL} s")
        print("replicas   engine  sidecar  recorded    series  samples/s   MiB RSS KiB/series  rules s")
        for number in sys.argv[1:] or ["10", "100"]:
            (folder / number).mkdir()
            print(measure(int(number), engine, sidecar, service, folder / number), flush=True)


if __name__ == "__main__":
    main()
