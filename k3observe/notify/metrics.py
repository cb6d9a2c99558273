"""The bridge's own metrics, every series there from the start."""

from __future__ import annotations

import platform as python_platform
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from k3observe.notify.robot import STATUSES
from k3observe.version import __version__

OUTCOMES = ("accepted", "queue_full", "invalid", "delivered", "rejected", "expired")
CODES = (200, 400, 401, 404, 405, 408, 411, 413, 503)


class Metrics:
    """Counters and gauges in a registry of their own; label values are robots' names and fixed words only."""

    def __init__(self, robots: Iterable[str], queue_capacity: int) -> None:
        self.registry = CollectorRegistry()
        self.sent = Counter(
            "k3observe_notify_sent",
            "Messages sent to the platform, by how that ended (ok, rate_limited, refused, rejected, error).",
            ["robot", "status"],
            registry=self.registry,
        )
        self.notifications = Counter(
            "k3observe_notify_notifications",
            "Notifications of Alertmanager: accepted, queue_full or invalid when they come; delivered, rejected or "
            "expired when they go.",
            ["robot", "outcome"],
            registry=self.registry,
        )
        self.retries = Counter(
            "k3observe_notify_retries", "Sends that repeat a failed one.", ["robot"], registry=self.registry
        )
        self.queue_length = Gauge(
            "k3observe_notify_queue_length", "Notifications that wait.", ["robot"], registry=self.registry
        )
        self.last_success = Gauge(
            "k3observe_notify_last_success_timestamp_seconds",
            "When a message was delivered last; 0 before the first.",
            ["robot"],
            registry=self.registry,
        )
        self.requests = Counter(
            "k3observe_notify_http_requests", "Requests answered, by status code.", ["code"], registry=self.registry
        )
        capacity = Gauge(
            "k3observe_notify_queue_capacity", "Notifications that may wait for a robot.", registry=self.registry
        )
        capacity.set(queue_capacity)
        build = Gauge(
            "k3observe_notify_build_info", "Version of the bridge.", ["version", "python"], registry=self.registry
        )
        build.labels(__version__, python_platform.python_version()).set(1)
        for code in CODES:
            self.requests.labels(str(code))
        for robot in robots:
            for status in STATUSES:
                self.sent.labels(robot, status)
            for outcome in OUTCOMES:
                self.notifications.labels(robot, outcome)
            for family in (self.retries, self.queue_length, self.last_success):
                family.labels(robot)
