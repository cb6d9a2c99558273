"""Fixtures of the bridge's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.notify import robot_fakes


@pytest.fixture
def fake() -> Iterator[robot_fakes.Platforms]:
    """The three platforms on loopback."""
    with robot_fakes.platforms() as state:
        yield state
