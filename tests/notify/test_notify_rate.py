"""The token bucket keeps below the platforms' limits whatever the load."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3observe.notify.platforms import PLATFORMS
from k3observe.notify.rate import TokenBucket

LIMITS = {"dingtalk": [(60, 20)], "wecom": [(60, 20)], "feishu": [(60, 100), (1, 5)], "lark": [(60, 100), (1, 5)]}


@settings(max_examples=50, deadline=None)
@given(gaps=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.3, 5.0, 40.0]), min_size=30, max_size=300))
@pytest.mark.parametrize("name", LIMITS)
def test_no_window_of_time_sees_more_messages_than_the_platform_allows(name: str, gaps: list[float]) -> None:
    platform, now = PLATFORMS[name], 0.0
    bucket, times = TokenBucket(platform.burst, platform.per_second, now), []
    for gap in gaps:
        now += gap
        now += bucket.wait(now)
        assert bucket.wait(now) == 0
        bucket.take()
        times.append(now)
    for window, limit in LIMITS[name]:
        assert all(sum(start <= moment < start + window for moment in times) <= limit for start in times)


def test_a_restart_does_not_give_another_burst() -> None:
    bucket = TokenBucket(5, 0.25, 0.0)
    bucket.take()
    assert bucket.wait(0.0) == pytest.approx(4.0, abs=0.01)
