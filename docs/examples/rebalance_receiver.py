"""An example receiver of `action: rebalance`: one program call a service, never two at once, not again too soon.

    python rebalance_receiver.py --port 19305 --token-file token --program /usr/local/bin/rebalance --quiet 1800

Alertmanager posts to http://127.0.0.1:19305/<token>: `webhook: {url_file: ...}` keeps the token out of its file.
The program gets the service's name as its only argument; the rest of the alert is in its environment as K3_<LABEL>.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import re
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MAX_BYTES = 4 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Rebalancer:
    """Remembers what runs, and when each service was rebalanced last."""

    def __init__(self, program: str, quiet: float) -> None:
        self._program, self._quiet = program, quiet
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def handle(self, payload: dict) -> None:
        """Start the program for each service with a firing alert. Resolved alerts and repetitions start nothing."""
        for alert in payload.get("alerts", []):
            labels = alert.get("labels", {})
            service = labels.get("service", "")
            if alert.get("status") != "firing" or labels.get("action") != "rebalance" or not NAME.fullmatch(service):
                continue
            with self._lock:
                now = time.monotonic()
                if now - self._last.get(service, -self._quiet) < self._quiet:
                    continue
                self._last[service] = now
            threading.Thread(target=self._run, args=(service, labels), daemon=True).start()

    def _run(self, service: str, labels: dict) -> None:
        extra = {f"K3_{re.sub(r'[^A-Z0-9_]', '_', key.upper())}": str(value)[:256] for key, value in labels.items()}
        done = subprocess.run([self._program, service], env={**os.environ, **extra}, timeout=3600)
        print(f"rebalance service={service} status={done.returncode}", flush=True)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=19305)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--quiet", type=float, default=1800, help="seconds before a service is rebalanced again")
    args = parser.parse_args()
    token, rebalancer = args.token_file.read_text().strip(), Rebalancer(args.program, args.quiet)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            """200: taken; 403: wrong token; 400: no notification of Alertmanager. It repeats on 5xx only."""
            length = int(self.headers.get("Content-Length") or 0)
            if not hmac.compare_digest(self.path.strip("/").encode(), token.encode()):
                return self.send_error(403)
            if not 0 < length <= MAX_BYTES:
                return self.send_error(400)
            try:
                rebalancer.handle(json.loads(self.rfile.read(length)))
            except (ValueError, AttributeError):
                return self.send_error(400)
            self.send_response(200)
            self.end_headers()
            return None

    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
