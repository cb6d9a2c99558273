"""A token bucket: how long to wait so that a platform's rate limit holds."""

from __future__ import annotations


class TokenBucket:
    """Allows ``burst`` sends at once and ``per_second`` afterwards.

    It starts with a single token: a bridge that is restarted again and again must not exceed the limit either.
    Times are monotonic seconds, given by the caller.
    """

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = 1.0
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until the next send is allowed; 0 when it is allowed now."""
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._per_second)
        self._at = now
        missing = 1.0 - self._tokens
        # a hair less than one counts as one: sums of fractions may never reach it
        return missing / self._per_second if missing > 1e-6 else 0.0

    def take(self) -> None:
        """Count a send."""
        self._tokens -= 1.0

    def empty(self) -> None:
        """Forget what was saved: the platform says that it is too much."""
        self._tokens = min(self._tokens, 0.0)
