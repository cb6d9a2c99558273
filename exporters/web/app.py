"""What the exporter answers: metrics, landing page, health, readiness and the collectors' own paths."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from k3observe.exporters.collector import Collector
from k3observe.exporters.web.http import Authenticate, Request, Response, text
from k3observe.exporters.web.lanes import FEW, MAX_WAITING
from k3observe.exporters.web.negotiation import canonical_accept, gzip_accepted
from k3observe.exporters.web.snapshots import Snapshots
from k3observe.version import __version__

Route = Callable[[], tuple[str, bytes]]
"""Serves a path of a collector: returns content type and body."""


class Work(NamedTuple):
    """An answer that may take time: ``run`` is called on the thread of its lane, never on the event loop."""

    lane: str
    run: Callable[[], Answer]
    waiting: int = MAX_WAITING
    """How many may wait in the lane before this one."""


Answer = Response | Work


class App:
    """Answers requests; ``answer`` itself never waits."""

    def __init__(
        self,
        snapshots: Snapshots,
        collectors: Sequence[Collector],
        telemetry_path: str = "/metrics",
        authenticate: Authenticate | None = None,
        extra_headers: Callable[[], tuple[tuple[str, str], ...]] = tuple,
    ) -> None:
        self._snapshots = snapshots
        self._collectors = tuple(collectors)
        self._telemetry_path = telemetry_path
        self._authenticate = authenticate
        self._extra_headers = extra_headers
        routes: dict[str, Route] = {}
        for collector in collectors:
            routes.update(getattr(collector, "routes", {}))
        self._routes: Mapping[str, Route] = routes

    def answer(self, request: Request) -> Answer:
        """Return the response to a request, or the work that leads to it."""
        if self._authenticate is None:
            return self._authorised(request)
        verdict = self._authenticate(request.headers.get("authorization", ""))
        if isinstance(verdict, bool):
            return self._judged(verdict, request)
        return Work("authentication", lambda: self._judged(verdict(), request), FEW)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that the configuration adds to every response."""
        return self._extra_headers()

    def _judged(self, allowed: bool, request: Request) -> Answer:
        if allowed:
            return self._authorised(request)
        return text(401, "Unauthorized", (("WWW-Authenticate", "Basic"),))

    def _authorised(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return text(405, "Only GET and HEAD are served.", (("Allow", "GET, HEAD"),))
        path = request.path
        if path == self._telemetry_path:
            accept = canonical_accept(request.headers.get("accept", ""))
            gzip = gzip_accepted(request.headers.get("accept-encoding", ""))
            kept = self._snapshots.fresh(accept, gzip)
            return kept or Work("metrics", partial(self._snapshots.render, accept, gzip))
        if path == "/-/healthy":
            return text(200, "Healthy")
        if path == "/-/ready":
            return Work("ready", self._ready)
        if path in self._routes:
            return Work(path, partial(self._route, self._routes[path]))
        if path == "/":
            return self._landing_page()
        return text(404, "Not found")

    def _ready(self) -> Response:
        waiting = [collector.name for collector in self._collectors if not collector.ready()]
        if waiting:
            return text(503, f"Waiting for the first reading of {', '.join(waiting)}")
        return text(200, "Ready")

    def _route(self, route: Route) -> Response:
        content_type, body = route()
        return Response(200, content_type, body)

    def _landing_page(self) -> Response:
        paths = (self._telemetry_path, *sorted(self._routes), "/-/healthy", "/-/ready")
        links = "".join(f'<li><a href="{html.escape(path)}">{html.escape(path)}</a></li>' for path in paths)
        names = ", ".join(collector.name for collector in self._collectors)
        page = (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>k3observe-exporter</title></head>'
            f"<body><h1>k3observe-exporter {html.escape(__version__)}</h1><p>Collectors: {html.escape(names)}</p>"
            f"<ul>{links}</ul></body></html>\n")
        return Response(200, "text/html; charset=utf-8", page.encode())
