"""VictoriaMetrics behind ``remote_write`` answers the bundle's recorded series and dashboards as Prometheus does."""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from k3observe.drill.advance import Replay
from k3observe.drill.exposition import parse
from k3observe.drill.replay import serve
from k3observe.drill.servers import Server, free_port, prometheus, victoria_metrics, wait_until
from tests.kubernetes.conftest import write
from tests.scale.stack import plan_of, render_all

pytestmark = [pytest.mark.long, pytest.mark.parametrize("toolset", ["3.5"], indirect=True)]
SERVICE = {"name": "kimi-k3", "engine": {"name": "vllm", "version": "0.33", "args": {"max_num_seqs": 16}}}
VARIABLES = {"service": "kimi-k3", "instance": ".*", "engine": ".*", "role": ".*", "model_name": ".*"}


def queries(bundle: dict[str, bytes]) -> list[str]:
    """What the dashboards ask, with their variables filled in."""
    found = []
    for path, text in bundle.items():
        if path.startswith("grafana/dashboards/"):
            found += re.findall(r'"expr":("(?:[^"\\]|\\.)*")', text.decode())
    plain = {json.loads(text) for text in found}
    for name, value in VARIABLES.items():
        plain = {re.sub(rf"\$\{{?{name}(?::\w+)?\}}?(?!\w)", value, text) for text in plain}
    return sorted(re.sub(r"\$__(rate_interval|interval|range)\b|\$\{__\w+\}", "20s", text) for text in plain)


def answer(server: Server, expression: str, at: float) -> dict[str, float]:
    rows = server.get_json("/api/v1/query", query=expression, time=f"{at:.3f}")["data"]["result"]
    if rows and not isinstance(rows[0], dict):
        return {"": float(rows[1])}
    return {
        json.dumps({k: v for k, v in row["metric"].items() if k != "__name__"}, sort_keys=True): float(row["value"][1])
        for row in rows
    }


def same(left: dict[str, float], right: dict[str, float]) -> bool:
    return left.keys() == right.keys() and all(
        math.isclose(value, right[key], rel_tol=0.05, abs_tol=1e-6) or (math.isnan(value) and math.isnan(right[key]))
        for key, value in left.items())


def test_recorded_series_and_dashboards_have_the_same_values_there(
    prometheus_bin: Path, victoria_metrics_bin: Path, shared: Path, tmp_path: Path
) -> None:
    text = (shared / "samples" / "engines" / "vllm-0.33.0-served.prom").read_text()
    with ExitStack() as running:
        store = running.enter_context(victoria_metrics(
            victoria_metrics_bin, tmp_path / "vm", arguments=["-search.disableCache"]))
        replay = Replay(parse(text))
        replay.set_all_rates(1.0)
        # one a second is below what is left of a float's digits in a count of floating-point operations
        replay.set_rate("vllm:estimated_flops_per_gpu_total", 1e13)
        target = running.enter_context(serve(replay))
        config = {
            "version": 1, "stack": "kimi-k3", "services": [{**SERVICE, "targets": [target.address]}],
            "prometheus": {"version": "3.5", "scrape_interval": "1s", "evaluation_interval": "1s", "remote_write": [
                {"url": f"{store.url}/api/v1/write", "queue": {"batch_send_deadline": "1s"}}]},
        }  # fmt: skip
        bundle = render_all(plan_of(config, tmp_path))
        write(bundle, tmp_path)
        server = running.enter_context(prometheus(
            prometheus_bin, tmp_path / "prometheus" / "prometheus.yml", tmp_path / "data", free_port()))
        recorded = '{__name__=~"k3:.+"}'
        wait_until(lambda: store.query('k3:request_latency_seconds_bucket:rate5m{stack="kimi-k3"}'), "samples", 90)
        time.sleep(40)
        at = time.time() - 12
        ours, theirs = (
            {(row["metric"]["__name__"], json.dumps(row["metric"], sort_keys=True)): float(row["value"][1])
             for row in place.get_json("/api/v1/query", query=recorded, time=f"{at:.3f}")["data"]["result"]}
            for place in (server, store)
        )  # fmt: skip
        assert len({name for name, _ in ours}) > 20
        assert ours.keys() == theirs.keys()
        different = {key: (value, theirs[key]) for key, value in ours.items()
                     if not math.isclose(value, theirs[key], rel_tol=0.02, abs_tol=1e-6)
                     and not (math.isnan(value) and math.isnan(theirs[key]))}  # fmt: skip
        assert different == {}
        asked = queries(bundle)
        assert len(asked) > 30
        differing = [text for text in asked if not same(answer(server, text, at), answer(store, text, at))]
        assert differing == []
