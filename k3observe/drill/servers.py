"""Real servers on loopback, started for a while: Prometheus, Alertmanager, VictoriaMetrics and any other program.

Each ends with its `with` block, and also when this process dies, however it dies: the kernel sends it SIGTERM then.
The kernel takes the *thread* that started a server for its parent, so start servers from one that lives as long.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STOP_SECONDS = 10.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))

# Runs in a fresh interpreter, so that no Python code runs between fork and exec of a process that has threads.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerError(RuntimeError):
    """A server did not start or did not become ready; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    address: str
    """`127.0.0.1:port`"""
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """The root of its HTTP API."""
        return f"http://{self.address}"

    def get_json(self, path: str, **parameters: str) -> Any:
        """Return the JSON answer of a path such as `/api/v1/query`; raises urllib.error.HTTPError on a refusal."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with _NO_PROXY.open(f"{self.url}{path}{query}", timeout=10) as answer:
            return json.load(answer)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of a PromQL expression (Prometheus and VictoriaMetrics)."""
        result: list[dict[str, Any]] = self.get_json("/api/v1/query", query=expression)["data"]["result"]
        return result

    def reload(self) -> None:
        """Let it read its configuration again (SIGHUP)."""
        self.process.send_signal(signal.SIGHUP)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def run(
    name: str, argv: Sequence[str | Path], port: int, folder: Path, ready: str = "/-/ready", seconds: float = 30.0
) -> Iterator[Server]:
    """Run a program that serves 127.0.0.1:port until the block ends; its output goes to `folder/name.log`.

    Raises ServerError when it ends or is not ready (`ready` answers 200) within so many seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    trampoline = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*trampoline, *map(str, argv)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    server = Server(name, f"127.0.0.1:{port}", log, process)
    try:
        _wait_ready(server, ready, seconds)
        yield server
    finally:
        _stop(process)


@contextmanager
def prometheus(
    binary: Path, config: Path, folder: Path, port: int | None = None, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """Run Prometheus on this configuration; data and log go below `folder`.

    It repeats its alerts every second instead of every minute: it finds its Alertmanagers only some 5 s after its
    start, and an alert that fires before would else be told a minute late.
    """
    port = port or free_port()
    argv: list[str | Path] = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=1d",
        "--rules.alert.resend-delay=1s",
        *arguments,
    ]
    with run("prometheus", argv, port, folder) as server:
        yield server


@contextmanager
def alertmanager(
    binary: Path, config: Path, folder: Path, port: int | None = None, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """Run Alertmanager, alone in its cluster, on this configuration; data and log go below `folder`."""
    port = port or free_port()
    argv: list[str | Path] = [
        binary,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        *arguments,
    ]
    with run("alertmanager", argv, port, folder) as server:
        yield server


@contextmanager
def victoria_metrics(
    binary: Path, folder: Path, scrape_config: Path | None = None, arguments: Sequence[str] = ()
) -> Iterator[Server]:
    """Run VictoriaMetrics, which scrapes by itself when it is given a configuration.

    Its search latency is set to the least it takes (1 s): by default an answer leaves out the newest 30 s.
    """
    port = free_port()
    argv: list[str | Path] = [
        binary,
        f"-storageDataPath={folder / 'victoria-metrics'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-search.latencyOffset=1s",
        *([f"-promscrape.config={scrape_config}"] if scrape_config else []),
        *arguments,
    ]
    with run("victoria-metrics", argv, port, folder, ready="/health") as server:
        yield server


def wait_until(condition: Callable[[], object], what: str, seconds: float, every: float = 0.2) -> None:
    """Return once the condition holds; a refused or failed request counts as not yet.

    Raises TimeoutError naming what was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (OSError, ValueError, LookupError):  # not up yet, or nothing in the answer yet
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every)


def _wait_ready(server: Server, path: str, seconds: float) -> None:
    def answers() -> bool:
        if server.process.poll() is not None:
            raise ServerError(f"{server.name} ended with status {server.process.returncode}{_last_lines(server.log)}")
        with _NO_PROXY.open(f"{server.url}{path}", timeout=2) as answer:
            return bool(answer.status == 200)

    try:
        wait_until(answers, server.name, seconds, every=0.05)
    except (OSError, TimeoutError) as error:
        raise ServerError(f"{server.name} is not ready after {seconds:g} s{_last_lines(server.log)}") from error


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-8:]
    return "".join(f"\n  {line[:1000]}" for line in lines) or f": {log} is empty"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
