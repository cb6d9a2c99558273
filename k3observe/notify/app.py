"""The bridge's HTTP interface: Alertmanager's notifications in, metrics and health out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace

from prometheus_client.exposition import choose_encoder

from k3observe.exporters.web.toolkit import WebConfig
from k3observe.notify import payload
from k3observe.notify.delivery import Delivery
from k3observe.notify.metrics import Metrics
from k3observe.notify.server import Answer, Call

_LOG = logging.getLogger(__name__)


class App:
    """Answers requests. Bodies are parsed one at a time, which bounds the memory that senders together can take."""

    def __init__(self, deliveries: Mapping[str, Delivery], metrics: Metrics, web: WebConfig | None) -> None:
        self._deliveries = deliveries
        self._metrics = metrics
        self._web = web
        self._parsing = threading.Lock()
        self._draining = threading.Event()

    def drain(self) -> None:
        """From now on say that the bridge is not ready."""
        self._draining.set()

    def __call__(self, call: Call) -> Answer:
        """Answer a request and count the answer."""
        try:
            answer = self._route(call) if self._allowed(call) else _UNAUTHORIZED
        except TimeoutError:
            answer = _text(408, "the body did not come in time")
        except Exception as error:
            # a client must get an answer, and the text of an unknown error might show what it should not
            _LOG.error("a request failed: %s", type(error).__name__)
            answer = _text(503, "internal error: try again")
        self._metrics.requests.labels(str(answer.code)).inc()
        return replace(answer, headers=(*answer.headers, *self._web.headers())) if self._web else answer

    def _allowed(self, call: Call) -> bool:
        if self._web is None:
            return True
        verdict = self._web.authenticate(call.authorization)
        return verdict if isinstance(verdict, bool) else verdict()

    def _route(self, call: Call) -> Answer:
        readers = {"/metrics": self._exposition, "/-/healthy": self._healthy, "/-/ready": self._ready}
        if reader := readers.get(call.path):
            if call.method not in ("GET", "HEAD"):
                return _text(405, "GET it", ("Allow", "GET, HEAD"))
            return reader(call)
        delivery = self._deliveries.get(call.path.strip("/"))
        if delivery is None:
            return _text(404, "no such robot in the configuration: POST to /<robot>, GET /metrics")
        if call.method != "POST":
            return _text(405, "POST Alertmanager's webhook here", ("Allow", "POST"))
        return self._receive(delivery, call)

    def _receive(self, delivery: Delivery, call: Call) -> Answer:
        if call.chunked or call.length is None:
            return self._invalid(delivery, 411, "a body needs its Content-Length")
        if not call.length.isascii() or not call.length.isdigit() or len(call.length) > 12:
            return self._invalid(delivery, 400, "the Content-Length is no number")
        length = int(call.length)
        if length > payload.MAX_BYTES:
            return self._invalid(delivery, 413, "larger than 1 MiB: set max_alerts in webhook_config")
        body = call.read(length)
        if len(body) < length:
            return self._invalid(delivery, 400, "the body is shorter than its Content-Length")
        try:
            with self._parsing:
                notification = payload.parse(body)
        except payload.PayloadError as error:
            return self._invalid(delivery, 400, str(error))
        if not delivery.offer(notification):
            return _text(503, "the robot's queue is full: try again", ("Retry-After", "10"))
        return _text(200, "queued")

    def _invalid(self, delivery: Delivery, code: int, problem: str) -> Answer:
        self._metrics.notifications.labels(delivery.robot.name, "invalid").inc()
        _LOG.warning("%s: notification refused: %s", delivery.robot.name, problem)
        return _text(code, problem)

    def _exposition(self, call: Call) -> Answer:
        encoder, content_type = choose_encoder(call.accept)
        return Answer(200, encoder(self._metrics.registry), content_type)

    def _healthy(self, call: Call) -> Answer:
        return _text(200, "healthy")

    def _ready(self, call: Call) -> Answer:
        return _text(503, "draining") if self._draining.is_set() else _text(200, "ready")


def _text(code: int, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(code, f"{text}\n".encode(), headers=headers)


_UNAUTHORIZED = _text(401, "name and password are needed", ("WWW-Authenticate", "Basic"))
