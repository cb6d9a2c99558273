"""Platforms on loopback that check what the real ones check: token, signature, size and rate; and the real bridge."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

TOKENS = {
    "dingtalk": "tokenOfDingTalk0123456789",
    "feishu": "token-of-feishu-0123456789",
    "wecom": "token-of-wecom-0123456789",
}
SECRETS = {"dingtalk": "SECdingtalk+/=secret", "feishu": "feishuSecret/+="}


@dataclass
class Message:
    """One message a platform accepted."""

    platform: str
    title: str
    text: str
    body: dict[str, Any]
    at: float


@dataclass
class Platforms:
    """``script``: answers given instead of judging, first to last (None judges); ``limit``: messages a minute."""

    url: str = ""
    limit: int = 20
    script: list[tuple[int, Any, dict[str, str]] | None] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    refused: list[tuple[str, Any]] = field(default_factory=list)
    delay: float = 0.0
    _times: dict[str, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, count: int, seconds: float = 15) -> list[Message]:
        """Wait for ``count`` messages."""
        until(lambda: len(self.messages) >= count, seconds, lambda: f"{len(self.messages)} messages, {self.refused}")
        return self.messages

    def judge(self, path: str, query: dict[str, list[str]], raw: bytes) -> tuple[int, Any, dict[str, str]]:
        with self._lock:
            scripted = self.script.pop(0) if self.script else None
            if scripted:
                self.refused.append((path, scripted[1]))
                return scripted
            answer = self._judge(path, query, raw)
            if answer.get("errcode", answer.get("code")):
                self.refused.append((path, answer))
            return 200, answer, {}

    def _judge(self, path: str, query: dict[str, list[str]], raw: bytes) -> dict[str, Any]:
        body = json.loads(raw.decode("utf-8"))
        if path == "/robot/send":
            return self._dingtalk(query, body, raw)
        if path == "/cgi-bin/webhook/send":
            return self._wecom(query, body)
        assert path.startswith("/open-apis/bot/v2/hook/"), path
        return self._feishu(path.rsplit("/", 1)[1], body, raw)

    def _dingtalk(self, query: dict[str, list[str]], body: dict[str, Any], raw: bytes) -> dict[str, Any]:
        if query.get("access_token") != [TOKENS["dingtalk"]]:
            return {"errcode": 300001, "errmsg": "token is not exist"}
        timestamp, signature = query.get("timestamp", ["0"])[0], query.get("sign", [""])[0]
        digest = hmac.new(SECRETS["dingtalk"].encode(), f"{timestamp}\n{SECRETS['dingtalk']}".encode(), hashlib.sha256)
        if abs(int(timestamp) / 1000 - time.time()) > 3600 or signature != base64.b64encode(digest.digest()).decode():
            return {"errcode": 310000, "errmsg": "sign not match"}
        if len(raw) > 20_000:
            return {"errcode": 460101, "errmsg": "body size"}
        if self._exceeds("dingtalk"):
            return {"errcode": 130101, "errmsg": "send too fast, exceed 20 times per minute"}
        assert body["msgtype"] == "markdown"
        self._accept("dingtalk", body["markdown"]["title"], body["markdown"]["text"], body)
        return {"errcode": 0, "errmsg": "ok"}

    def _wecom(self, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        if query.get("key") != [TOKENS["wecom"]]:
            return {"errcode": 93000, "errmsg": "invalid webhook url"}
        content = body["markdown"]["content"]
        if body["msgtype"] != "markdown" or len(content.encode()) > 4096:
            return {"errcode": 40058, "errmsg": "markdown.content exceed max length 4096"}
        if self._exceeds("wecom"):
            return {"errcode": 45009, "errmsg": "api freq out of limit"}
        self._accept("wecom", content.split("\n", 1)[0], content, body)
        return {"errcode": 0, "errmsg": "ok"}

    def _feishu(self, token: str, body: dict[str, Any], raw: bytes) -> dict[str, Any]:
        if token != TOKENS["feishu"]:
            return {"code": 19001, "msg": "param invalid: incoming webhook access token invalid"}
        key = f"{body.get('timestamp', 0)}\n{SECRETS['feishu']}".encode()
        right = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
        if abs(int(body.get("timestamp", 0)) - time.time()) > 3600 or body.get("sign") != right:
            return {"code": 19021, "msg": "sign match fail or timestamp is not within one hour from current time"}
        if len(raw) > 20_000:
            return {"code": 19036, "msg": "The message exceeds the size limit"}
        if self._exceeds("feishu"):
            return {"code": 11232, "msg": "frequency limited"}
        assert body["msg_type"] == "interactive"
        card = body["card"]
        self._accept("feishu", card["header"]["title"]["content"], card["elements"][0]["content"], body)
        return {"code": 0, "msg": "success", "data": {}}

    def _exceeds(self, platform: str) -> bool:
        now = time.monotonic()
        times = [moment for moment in self._times.get(platform, []) if now - moment < 60]
        self._times[platform] = [*times, now]
        second = sum(now - moment < 1 for moment in times)
        return len(times) >= (100 if platform == "feishu" else self.limit) or (platform == "feishu" and second >= 5)

    def _accept(self, platform: str, title: str, text: str, body: dict[str, Any]) -> None:
        self.messages.append(Message(platform, title, text, body, time.monotonic()))


@contextmanager
def platforms() -> Iterator[Platforms]:
    """Serve the three platforms on one port."""
    state = Platforms()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            parts = urlsplit(self.path)
            time.sleep(state.delay)
            status, document, headers = state.judge(parts.path, parse_qs(parts.query), raw)
            answer = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


class Bridge:
    """The running process."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        until(lambda: " serves on " in self.log or process.poll() is not None, 20, lambda: self.log)
        match = re.search(r"serves on 127\.0\.0\.1:(\d+)", self.log)
        assert match, self.log
        self.url = f"http://127.0.0.1:{match[1]}"
        self.port = int(match[1])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, robot: str, body: object) -> tuple[int, str]:
        return self.request("POST", f"/{robot}", body if isinstance(body, bytes) else json.dumps(body).encode())

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        try:
            with urlopen(Request(self.url + path, data=body, method=method), timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, series: str) -> float:
        text = self.request("GET", "/metrics")[1]
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series + " "))

    def logged(self, text: str, seconds: float = 15) -> None:
        until(lambda: text in self.log, seconds, lambda: self.log)


def until(condition: Callable[[], object], seconds: float, state: Callable[[], str]) -> None:
    """Wait for a condition; fail with the state."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, state()
        time.sleep(0.02)


def write_config(folder: Path, url: str, extra: dict[str, str] | None = None) -> Path:
    """Write a configuration with one robot a platform, named after it; ``extra`` are further lines of a robot."""
    lines = ["robots:"]
    for name, token in TOKENS.items():
        (folder / f"{name}.token").write_text(token + "\n")
        lines += [f"  {name}:", f"    type: {name}", f"    token_file: {name}.token", f"    base_url: {url}"]
        if name in SECRETS:
            (folder / f"{name}.secret").write_text(SECRETS[name] + "\n")
            lines.append(f"    secret_file: {name}.secret")
        lines += [f"    {line}" for line in (extra or {}).get(name, "").splitlines()]
    path = folder / "notify.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def bridge(config: Path, *flags: str) -> Iterator[Bridge]:
    """Run the bridge; at the end no secret may stand in what it logged."""
    log = config.parent / "bridge.log"
    command = [sys.executable, "-m", "k3observe.notify.main", "--config.file", str(config)]
    command += ["--web.listen-address", "127.0.0.1:0", *flags]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, text=True)
    try:
        yield Bridge(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
    assert_no_secret(log.read_text())
    assert "Traceback" not in log.read_text()


def assert_no_secret(text: str) -> None:
    """No token and no signing secret stands in a text."""
    for secret in (*TOKENS.values(), *SECRETS.values()):
        assert secret not in text


def alert(
    name: str = "KVCacheUsageHigh", status: str = "firing", labels: dict[str, str] | None = None, **annotations: str
) -> dict[str, Any]:
    """An alert as Alertmanager sends it."""
    all_labels = {"alertname": name, "severity": "warning", "action": "scale_out", "stack": "k3", "service": "kimi-k3",
                  **(labels or {})}  # fmt: skip
    return {
        "status": status,
        "labels": all_labels,
        "annotations": {"summary": "KV cache of kimi-k3 is nearly full", **annotations},
        "startsAt": "2026-11-30T01:02:03.123456789Z",
        "endsAt": "2026-11-30T02:07:03.5Z" if status == "resolved" else "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example.com/graph",
        "fingerprint": hashlib.sha256(json.dumps(all_labels, sort_keys=True).encode()).hexdigest()[:16],
    }


def webhook(alerts: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A webhook body of Alertmanager, version 4."""
    return {
        "version": "4",
        "groupKey": '{}:{service="kimi-k3"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "ops",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example.com",
        "alerts": list(alerts),
        **fields,
    }
