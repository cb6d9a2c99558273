"""A worker process of an engine, as far as the plugin sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporters.vllm_plugin import balancer


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The directory that the plugin publishes to."""
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


@pytest.fixture
def worker(tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment in which the plugin is on, and a vLLM that nothing has imported yet."""
    balancer.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setitem(sys.modules, "torch", balancer.torch())
    monkeypatch.setattr(balancer, "GROUP", balancer.Group())
    monkeypatch.setenv("K3OBSERVE_EXPERTS_DIR", str(published))
    monkeypatch.setenv("K3OBSERVE_EXPERTS_STEPS", "5")
    monkeypatch.setenv("K3OBSERVE_EXPERTS_INSTANCE", "test")
    yield monkeypatch
    balancer.forget()
