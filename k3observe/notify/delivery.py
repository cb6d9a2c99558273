"""One robot's queue and the thread that empties it: within the rate limit, again after failures, merged when behind."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import requests

from k3observe.notify import credentials, message, transport
from k3observe.notify.config import Robot
from k3observe.notify.metrics import Metrics
from k3observe.notify.payload import Notification
from k3observe.notify.rate import TokenBucket
from k3observe.notify.robot import Credentials, Outcome

_MAX_RETRY = 300.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """``queue``: notifications that may wait; times in seconds: time-out of a send, first wait after a failure
    (doubled up to 5 minutes), and the age at which a notification is given up."""

    queue: int = 100
    timeout: float = 10.0
    retry: float = 1.0
    give_up: float = 3600.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    notification: Notification
    since: float


class Delivery:
    """Delivers notifications to one robot.

    All that waits is sent as one message. So a robot that is behind, because of the rate limit or of failures, catches
    up with a single message, and what was resolved meanwhile is told as resolved only.
    """

    def __init__(self, robot: Robot, settings: Settings, metrics: Metrics, now: Callable[[], float] = time.monotonic):
        self.robot = robot
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._bucket = TokenBucket(robot.platform.burst, robot.platform.per_second, now())
        self._session = requests.Session()
        self._change = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._failures = 0
        self._not_before = now()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"deliver-{robot.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, notification: Notification) -> bool:
        """Queue a notification; False when the queue is full or the bridge stops: Alertmanager then tries again."""
        with self._change:
            accepted = not self._stopping and len(self._waiting) < self._settings.queue
            if accepted:
                self._waiting.append(_Waiting(notification, self._now()))
                self._metrics.queue_length.labels(self.robot.name).set(len(self._waiting))
                self._change.notify_all()
        self._count("accepted" if accepted else "queue_full")
        return accepted

    def stop(self) -> None:
        """Accept nothing more and end once the queue is empty."""
        with self._change:
            self._stopping = True
            self._change.notify_all()

    def join(self, timeout: float) -> int:
        """Wait at most ``timeout`` s for the end after ``stop``; return how many notifications are left."""
        self._thread.join(timeout)
        with self._change:
            return len(self._waiting)

    def _run(self) -> None:
        while batch := self._next():
            try:
                outcome = self._send(batch)
            except Exception as error:
                # the thread must live on; only the kind is told, the text might hold the URL
                outcome = Outcome("error", f"internal error: {type(error).__name__}")
            self._settle(batch, outcome)

    def _next(self) -> tuple[_Waiting, ...]:
        """Wait until something may be sent; return all that waits, nothing at the end."""
        with self._change:
            while True:
                self._change.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return ()
                now = self._now()
                # at the end, waiting for better times would be waiting for nothing; the rate limit holds all the same
                delay = max(self._bucket.wait(now), 0.0 if self._stopping else self._not_before - now)
                if delay <= 0:
                    self._bucket.take()
                    return tuple(self._waiting)
                self._change.wait(delay)

    def _send(self, batch: tuple[_Waiting, ...]) -> Outcome:
        robot, platform = self.robot, self.robot.platform
        if self._failures:
            self._metrics.retries.labels(robot.name).inc()
        try:
            secrets = credentials.read(platform, robot.token_file, robot.secret_file)
        except credentials.SecretError as error:
            return Outcome("refused", str(error))
        said = message.compose(
            [waiting.notification for waiting in batch],
            robot.language,
            robot.zone,
            robot.mention,
            lambda user: not platform.mention_problem(user),
        )
        outcome = self._post(said, secrets)
        if outcome.status == "rejected":
            self._metrics.sent.labels(robot.name, outcome.status).inc()
            _LOG.error("%s: the text is refused, a line without it is sent: %s", robot.name, outcome.advice)
            time.sleep(max(0.0, self._bucket.wait(self._now())))
            self._bucket.take()
            outcome = self._post(said.bare(), secrets)
        return outcome

    def _post(self, said: message.Message, secrets: Credentials) -> Outcome:
        platform = self.robot.platform
        request = platform.request(said, secrets, self.robot.base_url, time.time())
        try:
            reply = transport.post(self._session, request, self._settings.timeout)
        except transport.UnreachableError as error:
            return Outcome("error", str(error))
        outcome = platform.judge(reply)
        return Outcome(outcome.status, secrets.hide(outcome.advice), outcome.wait)

    def _settle(self, batch: tuple[_Waiting, ...], outcome: Outcome) -> None:
        name, now = self.robot.name, self._now()
        self._metrics.sent.labels(name, outcome.status).inc()
        if outcome.status in ("ok", "rejected"):
            done, self._failures = len(batch), 0
        else:
            done = sum(now - waiting.since >= self._settings.give_up for waiting in batch)
            delay = min(self._settings.retry * 2 ** min(self._failures, 20), _MAX_RETRY) * random.uniform(0.75, 1.25)  # noqa: S311
            self._not_before = now + max(delay, outcome.wait)
            self._failures += 1
            if outcome.status == "rate_limited":
                self._bucket.empty()
        with self._change:
            for _ in range(done):  # new ones are appended at the other end only
                self._waiting.popleft()
            left = len(self._waiting)
            self._metrics.queue_length.labels(name).set(left)
        if outcome.status == "ok":
            self._count("delivered", done)
            self._metrics.last_success.labels(name).set(time.time())
            _LOG.info("%s: delivered, notifications in the message: %d", name, done)
        elif outcome.status == "rejected":
            self._count("rejected", done)
            _LOG.error("%s: dropped, even a line without the alerts' text is refused: %s", name, outcome.advice)
        else:
            self._count("expired", done)
            _LOG.warning("%s: not delivered (%s): %s; given up: %d, waiting for the next attempt: %d",
                         name, outcome.status, outcome.advice, done, left)  # fmt: skip

    def _count(self, outcome: str, by: int = 1) -> None:
        self._metrics.notifications.labels(self.robot.name, outcome).inc(by)
