"""A real Prometheus that scrapes the simulated stack, shared by the tests that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from k3observe.drill.servers import Server
from k3observe.plan import Plan
from k3observe.preview.demo import simulated


@pytest.fixture(scope="session")
def told(
    c_compiler: Path, prometheus_of_today: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Plan, Server]]:
    """vLLM, SGLang and MindIE services with their sidecars, after their story was told.

    It is long enough for a rebalance in the middle to have settled at its end.
    """
    with simulated(tmp_path_factory.mktemp("simulated"), "en", seconds=110) as running:
        yield running

