"""A simulated target: serves a captured exposition on loopback, alive and with faults that can be injected.

As a thread: `with serve(Replay(parse(text))) as target: ... target.url`. As a process, which prints its address:
`python -m k3observe.drill.replay --file capture.prom --port 0`; it is then steered by JSON documents posted to
`/drill` (see `steer`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, get_args

from k3observe.drill.advance import Replay, UnknownSeriesError
from k3observe.drill.exposition import MAX_BYTES, ExpositionError, Format, Spelling, parse, write

Fault = Literal["gone", "hang", "error"]
"""`gone` closes the connection without an answer, `hang` never answers, `error` answers 500."""

_HANG_SECONDS = 120.0
_STEER_BYTES = 64 << 10


@dataclass(frozen=True)
class Manner:
    """How a target answers. What is None follows the scraper's Accept header, as prometheus_client from 0.23 does."""

    form: Format | None = None
    spelling: Spelling | None = None
    content_type: str | None = None
    """A header to send instead of the true one; empty: none at all, which Prometheus 3 takes for a failed scrape."""


def negotiate(accept: str) -> tuple[Format, Spelling, str]:
    """Return format, spelling and content type that prometheus_client (0.23 and later) chooses for an Accept header.

    It takes the first kind it knows, whatever the weights, and keeps colons only for `escaping=allow-utf-8`.
    """
    for part in accept.split(","):
        kind, *rest = (word.strip() for word in part.split(";"))
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        version = options.get("version", "")
        utf8 = options.get("escaping") == "allow-utf-8"
        escaping = "allow-utf-8" if utf8 else "underscores"
        spelling: Spelling = "colon" if utf8 else "underscore"
        if kind == "application/openmetrics-text":
            if not version:
                return "openmetrics", "underscore", _content_type("openmetrics", "1.0.0")
            if _at_least_1(version):
                return "openmetrics", spelling, f"{_content_type('openmetrics', version)}; escaping={escaping}"
        elif kind == "text/plain" and _at_least_1(version):
            return "text", spelling, f"{_content_type('text', '1.0.0')}; escaping={escaping}"
    return "text", "underscore", _content_type("text", "0.0.4")


@dataclass(frozen=True)
class _Injected:
    """A fault in force; `lifted` ends the hanging answers."""

    fault: Fault | None
    lifted: threading.Event


class Target:
    """A running target. Its `replay` moves the values, `inject` and `heal` its faults."""

    def __init__(self, replay: Replay, manner: Manner, port: int) -> None:
        self.replay = replay
        self._manner = manner
        self._injected = _Injected(None, threading.Event())
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        """As a scrape config names it."""
        self.url = f"http://{self.address}/metrics"

    def inject(self, fault: Fault) -> None:
        """Let every scrape from now on fail this way; steering stays possible."""
        self._change(fault)

    def heal(self) -> None:
        """Answer again."""
        self._change(None)

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return body and content type of a scrape with this Accept header."""
        form, spelling, content_type = negotiate(accept)
        manner = self._manner
        if manner.form is not None and manner.form != form:
            form = manner.form
            content_type = _content_type(form, "0.0.4" if form == "text" else "1.0.0")
        if manner.content_type is not None:
            content_type = manner.content_type
        return write(self.replay.families(), form, manner.spelling or spelling).encode(), content_type

    def steer(self, document: Mapping[str, Any]) -> None:
        """Do what one posted document says.

        `{"gauge": NAME, "value": V}`, `{"counter": NAME, "per_second": R}`,
        `{"histogram": NAME, "per_second": {"VALUE": R}}`, each with `"labels": {}` where wanted;
        `{"fault": "gone" | "hang" | "error" | null}`, `{"restart": true}`, `{"all": R}`.
        Raises ValueError or UnknownSeriesError.
        """
        labels = {str(key): str(value) for key, value in dict(document.get("labels") or {}).items()}
        match document:
            case {"gauge": str(name), "value": int() | float() as value}:
                self.replay.set_gauge(name, float(value), labels)
            case {"counter": str(name), "per_second": int() | float() as rate}:
                self.replay.set_rate(name, float(rate), labels)
            case {"histogram": str(name), "per_second": dict() as rates}:
                self.replay.observe(name, {float(value): float(rate) for value, rate in rates.items()}, labels)
            case {"fault": None}:
                self.heal()
            case {"fault": ("gone" | "hang" | "error") as fault}:
                self.inject(fault)
            case {"restart": True}:
                self.replay.restart()
            case {"all": int() | float() as rate}:
                self.replay.set_all_rates(float(rate))
            case _:
                raise ValueError(f"nothing to do in {json.dumps(document)[:200]}")

    @property
    def injected(self) -> _Injected:
        """The fault in force."""
        return self._injected

    def run(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stop serving, hanging answers included."""
        self._injected.lifted.set()
        self._server.shutdown()
        self._server.server_close()

    def _change(self, fault: Fault | None) -> None:
        before, self._injected = self._injected, _Injected(fault, threading.Event())
        before.lifted.set()


@contextmanager
def serve(replay: Replay, manner: Manner | None = None, port: int = 0) -> Iterator[Target]:
    """Run a target in a thread of this process; port 0 takes a free one."""
    target = Target(replay, manner or Manner(), port)
    thread = threading.Thread(target=target.run, name=f"replay-{target.port}", daemon=True)
    thread.start()
    try:
        yield target
    finally:
        target.close()
        thread.join(timeout=5)


def load(path: Path) -> Replay:
    """Read a capture from a file; raises OSError or ExpositionError."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    return Replay(parse(data.decode("utf-8", "replace"), str(path)))


def _handler(target: Target) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            if self.path == "/-/ready":
                self._reply(200, b"ready\n", "text/plain; charset=utf-8")
            elif self.path.split("?")[0] != "/metrics":
                self._reply(404, b"only /metrics is served\n", "text/plain; charset=utf-8")
            elif not self._faulty():
                self._reply(200, *target.answer(self.headers.get("Accept", "")))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path != "/drill" or not length.isdecimal() or int(length) > _STEER_BYTES:
                self.close_connection = True
                self._reply(400, b"post a small JSON document to /drill\n", "text/plain; charset=utf-8")
                return
            try:
                document = json.loads(self.rfile.read(int(length)))
                if not isinstance(document, dict):
                    raise ValueError("not a JSON object")
                target.steer(document)
            except (ValueError, TypeError, UnknownSeriesError) as error:
                self._reply(400, f"{error}\n".encode(), "text/plain; charset=utf-8")
                return
            self._reply(200, b"done\n", "text/plain; charset=utf-8")

        def _faulty(self) -> bool:
            injected = target.injected
            if injected.fault == "error":
                self._reply(500, b"Internal Server Error", "text/plain; charset=utf-8")
            elif injected.fault is not None:
                self.close_connection = True
                if injected.fault == "hang":
                    injected.lifted.wait(_HANG_SECONDS)
            return injected.fault is not None

        def _reply(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            if content_type:
                self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: a scrape every second is no news."""

    return Handler


def _content_type(form: Format, version: str) -> str:
    kind = "text/plain" if form == "text" else "application/openmetrics-text"
    return f"{kind}; version={version}; charset=utf-8"


def _at_least_1(version: str) -> bool:
    return version[:1].isdecimal() and int(version.split(".")[0]) >= 1


def main(argv: list[str] | None = None) -> int:
    """Run a target until SIGTERM or SIGINT; exit status 2 on a bad file or option."""
    parser = argparse.ArgumentParser(prog="python -m k3observe.drill.replay", description=__doc__)
    parser.add_argument("--file", type=Path, required=True, help="the captured exposition")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one (default)")
    parser.add_argument("--format", choices=get_args(Format), help="default: as the scraper asks")
    parser.add_argument("--spelling", choices=get_args(Spelling), help="default: as the scraper asks")
    parser.add_argument("--content-type", help="header to send instead of the true one; '' sends none")
    parser.add_argument("--rate", type=float, default=0.0, help="growth of every counter a second (default 0)")
    given = parser.parse_args(argv)
    try:
        replay = load(given.file)
        replay.set_all_rates(given.rate)
        target = Target(replay, Manner(given.format, given.spelling, given.content_type), given.port)
    except (OSError, ValueError, OverflowError, ExpositionError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):  # shutdown() waits for run(), which this thread is in
        signal.signal(number, lambda *_: threading.Thread(target=target.close).start())
    print(target.url, flush=True)
    target.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
