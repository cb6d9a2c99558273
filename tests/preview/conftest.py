"""The page of the simulated stack, drawn once."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from k3observe.preview.demo import simulated
from k3observe.preview.evaluate import evaluate
from k3observe.preview.page import page
from k3observe.preview.prometheus import Prometheus, Span
from k3observe.render import grafana


@pytest.fixture(scope="session")
def made(c_compiler: Path, prometheus_of_today: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preview")
    with simulated(folder, "zh-CN", seconds=45) as (plan, server):
        end = time.time()
        documents = [json.loads(content) for path, content in grafana.files(plan) if path.endswith(".json")]
        span = Span(end - 44, end, 2)
        result = evaluate(documents, Prometheus(server.url), span, 2)
        assert result.failures == []
        target = folder / "preview.html"
        target.write_text(page(result, span, "模拟服务", "zh-CN"), encoding="utf-8")
    return target
