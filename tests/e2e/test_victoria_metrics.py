"""VictoriaMetrics takes the same bundle: vmalert accepts the rules and records the values that Prometheus records.

Ten minutes of history are loaded into both, so that windows of five minutes are full, and both go on scraping the same
targets with the rendered scrape configuration.
"""

from __future__ import annotations

import math
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3observe.drill import servers
from k3observe.drill.advance import Replay
from k3observe.drill.binaries import Release
from k3observe.drill.exposition import Exposition, parse
from k3observe.drill.replay import serve
from k3observe.drill.servers import Server
from k3observe.drill.stack import ENGINES
from k3observe.drill.traffic import Load, traffic
from k3observe.drill.webhook import receive

from .room import configuration, render

HISTORY, STEP = 600, 5

YOUNG = ("k3:slo_events:", "k3:slo_bad_events:")
"""Rates over minutes and hours of counters that are recorded here for a minute: Prometheus takes the window for full,
VictoriaMetrics what there is of it. The ratios that are made of them are compared."""

pytestmark = [pytest.mark.long, pytest.mark.parametrize("toolset", ["3.5"], indirect=True)]


class Clock:
    """A clock that runs as the machine's does, and can be set back to write history."""

    def __init__(self) -> None:
        self.ago = 0.0

    def __call__(self) -> float:
        return time.time() - self.ago


def engines() -> Iterator[tuple[dict[str, Any], str, Exposition]]:
    """The services: configuration, kind of traffic, exposition."""
    for name, kind, version, file in (
        ("kimi-k3", "vllm", "0.33", "vllm-0.33.prom"),
        ("qwen", "sglang", "0.5.23", "sglang-0.5.23.prom"),
        ("ascend", "mindie", "2.0", "mindie.prom"),
    ):
        document = {"name": name, "engine": {"name": kind, "version": version}}
        yield document, kind, parse((ENGINES / file).read_text(), file)


def history(replay: Replay, clock: Clock, now: float, labels: dict[str, str]) -> Iterator[tuple[str, str, float]]:
    """Yield every sample of the past as a scrape would have stored it: series, value, time."""
    for ago in range(HISTORY, 0, -STEP):
        clock.ago = time.time() - now + ago
        for family in replay.families():
            for series in family.series:
                pairs = {**dict(series.labels), **labels}
                if "le" in pairs:
                    pairs["le"] = bound(pairs["le"])
                text = ",".join(f"{name}={quoted(value)}" for name, value in pairs.items())
                yield f"{series.name}{{{text}}}", repr(series.value), now - ago
    clock.ago = 0.0


def bound(le: str) -> str:
    """A bound as Prometheus 3 stores it, ``1.0`` for ``1``; VictoriaMetrics keeps what the engine wrote."""
    return le if le == "+Inf" else str(float(le))


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class Pair:
    """Both stores after some scrapes, with the rules evaluated in each."""

    def __init__(self, bundle: Path, prometheus: Server, victoria: Server) -> None:
        self.bundle, self.prometheus, self.victoria = bundle, prometheus, victoria

    def values(self, server: Server, record: str) -> dict[tuple[tuple[str, str], ...], float]:
        rows = server.query(f'{{__name__="{record}"}}')
        found = {}
        for row in rows:
            labels = {k: bound(v) if k == "le" else v for k, v in row["metric"].items() if k != "__name__"}
            found[tuple(sorted(labels.items()))] = float(row["value"][1])
        return found


@pytest.fixture(scope="module")
def pair(
    toolset: Release, prometheus_bin: Path, promtool: Path, victoria_metrics_bin: Path, vmalert_bin: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:  # fmt: skip
    folder = tmp_path_factory.mktemp("victoria")
    with ExitStack() as everything:
        services, replays = [], []
        now = time.time()
        for document, kind, exposition in engines():
            clock = Clock()
            clock.ago = time.time() - now + HISTORY
            replay = Replay(exposition, clock, clock)
            traffic(replay, kind, Load())
            target = everything.enter_context(serve(replay))
            services.append({**document, "targets": [target.address]})
            replays.append((replay, clock, document["name"], target.address))
        receiver = everything.enter_context(receive())
        config = configuration(services, {}, receiver, "127.0.0.1:9", toolset)
        bundle = render(folder, config)
        past = folder / "past"
        with past.open("w") as file:
            samples: dict[str, list[str]] = {}
            for replay, clock, name, address in replays:
                labels = {"stack": "proof", "service": name, "role": "unified", "job": "k3-engine", "instance": address}
                for series, value, at in history(replay, clock, now, labels):
                    samples.setdefault(series, []).append(f"{value} {at:.3f}")
            for series, lines in samples.items():
                file.writelines(f"{series} {line}\n" for line in lines)
            file.write("# EOF\n")
        subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", past, folder / "prometheus"],
                       check=True, capture_output=True, timeout=120)  # fmt: skip
        victoria = everything.enter_context(servers.victoria_metrics(
            victoria_metrics_bin, folder, bundle / "prometheus/prometheus.yml",
            ["-promscrape.config.strictParse=false", "-retentionPeriod=1d"]))  # fmt: skip
        load(victoria, past)
        port = servers.free_port()
        everything.enter_context(servers.run("vmalert", [
            vmalert_bin, f"-rule={bundle}/prometheus/rules/*.yml", f"-datasource.url={victoria.url}",
            f"-remoteWrite.url={victoria.url}", "-notifier.blackhole", "-rule.evalDelay=0s",
            f"-httpListenAddr=127.0.0.1:{port}"], port, folder, ready="/health"))  # fmt: skip
        prometheus = everything.enter_context(servers.prometheus(
            prometheus_bin, bundle / "prometheus/prometheus.yml", folder))  # fmt: skip
        servers.wait_until(lambda: len(prometheus.query("up == 1")) == len(services), "Prometheus scrapes", 30)
        servers.wait_until(lambda: len(victoria.query("up == 1")) == len(services), "VictoriaMetrics scrapes", 40)
        yield Pair(bundle, prometheus, victoria)


def load(victoria: Server, past: Path) -> None:
    """Import the history: the same lines with times in milliseconds, and bounds as the engines write them."""
    lines = (line.rpartition(" ") for line in past.read_text().splitlines() if not line.startswith("#"))
    body = "".join(f"{series} {round(float(at) * 1000)}\n" for series, _, at in lines)
    data = re.sub(r'(le="\d+)\.0"(?=.*service="ascend")', r'\1"', body).encode()
    request = urllib.request.Request(f"{victoria.url}/api/v1/import/prometheus", data)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def test_vmalert_accepts_every_rule(toolset: Release, pair: Pair, vmalert_bin: Path) -> None:
    done = subprocess.run([vmalert_bin, "-dryRun", f"-rule={pair.bundle}/prometheus/rules/*.yml"],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def recorded(bundle: Path) -> set[str]:
    groups = [group for path in sorted((bundle / "prometheus/rules").glob("*.yml"))
              for group in yaml.safe_load(path.read_text())["groups"]]  # fmt: skip
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def differences(pair: Pair) -> tuple[int, list[str]]:
    """Return how many series were compared, and what is apart by more than their scrapes at other moments explain."""
    compared, apart = 0, list[str]()
    for record in sorted(recorded(pair.bundle)):
        if record.startswith(YOUNG):
            continue
        ours, theirs = pair.values(pair.prometheus, record), pair.values(pair.victoria, record)
        for key in set(ours) | set(theirs):
            here, there = ours.get(key), theirs.get(key)
            if here is None or there is None or not math.isclose(here, there, rel_tol=0.05, abs_tol=1e-4):
                apart.append(f"{record}{dict(key)}: {here} here, {there} there")
            else:
                compared += 1
    return compared, apart


def test_every_recorded_series_has_the_value_that_prometheus_records(toolset: Release, pair: Pair) -> None:
    deadline = time.monotonic() + 60  # rates of recorded counters need some seconds of them
    while (found := differences(pair))[1] and time.monotonic() < deadline:
        time.sleep(1)
    compared, apart = found
    assert not apart, "\n".join(apart)
    assert compared > 100


def test_no_rule_of_vmalert_fails(toolset: Release, pair: Pair) -> None:
    log = next(pair.bundle.parent.glob("vmalert.log")).read_text()
    assert not re.findall(r"\t(?:error|warn)\t.*", log)
