"""Engines that run to a publication, and what was published."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3observe.exporters.vllm_plugin import fileformat, register
from k3observe.exporters.vllm_plugin.fileformat import Publication
from tests.exporters.vllm_plugin import balancer
from tests.exporters.vllm_plugin.balancer import Engine

EVERY = 5


def start(worker: pytest.MonkeyPatch, **options: Any) -> Engine:
    register()
    return Engine(balancer.load(), **options)


def wait_for(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.002)
    raise AssertionError("it did not happen in time")


def publication(published: Path, sequence: int, rank: int = 0) -> Publication:
    path = published / fileformat.file_name("test", 0, rank)

    def read() -> Publication | None:
        found = fileformat.decode(path.read_bytes()) if path.exists() else None
        return found if found and found.sequence == sequence else None

    found: Publication = wait_for(read)
    return found


def matrix(values: Any, like: Any) -> Any:
    return np.array(values).reshape(like.shape)


def run_to_publication(engine: Engine, **step: Any) -> None:
    engine.step(**step)
    while engine.state.expert_rearrangement_step % EVERY:
        engine.step(**step)


def begin(engine: Engine) -> None:
    """Run to the first mark, whose counts are never published."""
    run_to_publication(engine)
    engine.taken()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("vllm.plugins") and r.levelno > logging.INFO]
