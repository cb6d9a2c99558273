"""Goal 4: resident memory of a working sidecar against a Python process that only imports what it must."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench_exposition import exposition
from measure import COMPILED, interleaved, leave, report

FLOOR = "import prometheus_client, pynvml, time\nprint('ready', flush=True)\ntime.sleep(60)"
BANNED = ("numpy", "pydantic", "requests", "jinja2", "grafanalib", "click", "yaml")


def rss(pid: int) -> float:
    """Resident memory in bytes."""
    return float(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) * 1024


def floor() -> float:
    """Memory of the idle process."""
    process = subprocess.Popen((sys.executable, "-c", FLOOR), stdout=subprocess.PIPE, env=COMPILED)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        return rss(process.pid)
    finally:
        process.kill()
        process.communicate()


def sidecar(engine: str) -> float:
    """Memory of a sidecar after it has read an engine of 16,000 lines and answered scrapes."""
    process = subprocess.Popen(
        (sys.executable, "-m", "k3observe.exporters.main", "--collect=gpu,kv-cache", f"--kv-cache.url={engine}",
         "--kv-cache.interval=0.2", "--web.listen-address=127.0.0.1:0"), stderr=subprocess.PIPE, text=True,
        env=COMPILED)
    try:
        assert process.stderr is not None
        port = None
        while port is None:
            port = re.search(r"listening on [^ ]*:(\d+)", process.stderr.readline())
        threading.Thread(target=process.stderr.read, daemon=True).start()
        for _ in range(15):
            time.sleep(0.1)
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics") as response:
                text = response.read()
        assert b"k3_kv_cache_usage_ratio{" in text
        return rss(process.pid)
    finally:
        process.kill()
        process.wait()


def loaded() -> set[str]:
    """Modules of a sidecar with all collectors' code imported and one exposition made."""
    code = (
        "import sys, os\n"
        "os._exit = lambda status: (print(*{m.split('.')[0] for m in sys.modules}), sys.stdout.flush(), sys.exit(0))\n"
        "from k3observe.exporters.main import main\n"
        "main(['--collect=gpu,kv-cache,npu', '--textfile=k3.prom', '--once.timeout=1',"
        " '--kv-cache.url=http://127.0.0.1:1'])\n")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run((sys.executable, "-c", code), cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def main() -> None:
    """Print the ratio and what is loaded that must not be; exit 1 on a miss."""
    body = exposition().encode()

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    pair = interleaved(lambda: sidecar(url), floor, 7)
    banned = sorted(loaded() & set(BANNED))
    print(f"{'MISS' if banned else 'ok  '} goal 4: banned modules loaded: {', '.join(banned) or 'none'}")
    leave([not banned, report("goal 4", "sidecar", "idle Python with its libraries", pair, "MiB", at_most=1.15)])


if __name__ == "__main__":
    main()
