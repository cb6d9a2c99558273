"""A Kubernetes API on loopback that knows pods only: lists by label selector, and watches that never tell anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def pod(
    name: str, ip: str, labels: dict[str, str], ports: Sequence[tuple[str, int]], *, namespace: str = "llm",
    node: str = "node-a", sidecar: int | None = 19303, phase: str = "Running",
) -> dict:  # fmt: skip
    """A pod as the API tells it: the engine's container, and the sidecar as an init container."""
    containers = [{"name": "vllm", "image": "vllm", "ports": [
        {"name": key, "containerPort": number, "protocol": "TCP"} for key, number in ports]}]  # fmt: skip
    init = [{"name": "k3observe", "image": "k3observe", "restartPolicy": "Always", "ports": [
        {"name": "k3observe", "containerPort": sidecar, "protocol": "TCP"}]}] if sidecar else []  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels,
                     "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"nodeName": node, "containers": containers, "initContainers": init},
        "status": {"phase": phase, "podIP": ip, "hostIP": "10.0.0.1",
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


@contextmanager
def api(pods: Sequence[dict]) -> Iterator[str]:
    """Serve these pods; gives the address for ``api_server``."""
    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if query.get("watch") in ("true", "1"):
                if "sendInitialEvents" in query:
                    return self._send(400, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400})
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                closing.wait(60)
                return None
            parts = url.path.strip("/").split("/")
            namespace = parts[3] if parts[2:3] == ["namespaces"] else None
            wanted = dict(term.split("=", 1) for term in query.get("labelSelector", "").split(",") if term)
            found = [
                item for item in pods
                if namespace in (None, item["metadata"]["namespace"])
                and wanted.items() <= item["metadata"]["labels"].items()
            ]  # fmt: skip
            head = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
            return self._send(200, {**head, "items": found})

        def _send(self, code: int, document: dict) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
