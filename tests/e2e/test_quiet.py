"""All alerts armed over services to which nothing happens, or which restart: none fires."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from k3observe import rules
from k3observe.config.values import Duration
from k3observe.drill import servers, stack
from k3observe.drill.binaries import Release
from k3observe.drill.replay import Target, load, serve

from .room import Room, running

MINUTES = float(os.environ.get("K3OBSERVE_QUIET_MINUTES", "2.5"))
"""How long nothing may fire. 10 and more leave the shipped ``for``s as they are; less shortens them by a factor."""

SHIPPED = MINUTES >= 10
SHORTER = 30
"""Five minutes become ten seconds, a quarter of an hour half a minute."""


def settings() -> dict[str, dict[str, Any]]:
    """Every alert there is, switched on; with its ``for`` and window shortened unless there is time for the shipped."""
    found: dict[str, dict[str, Any]] = {}
    for alert in (alert for group in rules.load().groups for alert in group.alerts):
        found[alert.name] = {"enabled": True}
        if not SHIPPED and alert.for_.seconds:
            found[alert.name]["for"] = str(Duration.of(max(5, alert.for_.seconds // SHORTER)))
    return found


DOWN_SECONDS = 30.0 if SHIPPED else 2.0
"""Of one restart: at most half of what EngineDown, the quickest to complain, waits."""


@contextmanager
def restarting(target: Target, every: float) -> Iterator[None]:
    """Let an engine restart again and again: away for DOWN_SECONDS, back with its counters at zero."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(every):
            target.inject("gone")
            done.wait(DOWN_SECONDS)
            target.replay.restart()
            target.heal()

    thread = threading.Thread(target=run, name="restarts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


def services(everything: ExitStack, shared: Path, folder: Path) -> tuple[list[dict[str, Any]], Target, Target]:
    """Healthy services of three engines with their sidecars, idle ones, and one that restarts."""
    healthy = everything.enter_context(stack.vllm(folder / "v", "healthy"))
    npus = everything.enter_context(stack.mindie(folder / "m", "healthy-mindie"))
    sglang = everything.enter_context(stack.sglang(folder / "s", "healthy-sglang"))
    restarts = everything.enter_context(stack.vllm(folder / "r", "restarting", replicas=1, sidecars=False))
    healthy.config["alerts"] = {"RequestsTimedOut": {"params": {"timeout": 30}}}
    found = [healthy.config, npus.config, sglang.config, restarts.config]
    for name, engine, version, capture in (
        ("idle", "vllm", "0.33", "vllm-0.33.0.prom"),
        ("idle-sglang", "sglang", "0.5.23", "sglang-0.5.23.prom"),
    ):
        idle = everything.enter_context(serve(load(shared / "samples/engines" / capture)))
        for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs",
                      "sglang:num_queue_reqs", "sglang:token_usage", "vllm:kv_cache_usage_perc"):  # fmt: skip
            with contextlib.suppress(LookupError):
                idle.replay.set_gauge(gauge, 0)
        found.append({"name": name, "engine": {"name": engine, "version": version}, "targets": [idle.address]})
    return found, restarts.nodes[0].engine, healthy.nodes[0].engine


def fired(room: Room) -> set[str]:
    """Return every alert that has fired since the start."""
    span = f"{int(MINUTES * 60 + 120)}s"
    rows = room.prometheus.query(f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{span}]))')
    return {row["metric"]["alertname"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_nothing_but_the_watchdog_fires_over_healthy_idle_and_restarting_services(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, shared: Path, tmp_path: Path
) -> None:
    with ExitStack() as everything:
        configs, restarts, healthy = services(everything, shared, tmp_path / "simulated")
        room = everything.enter_context(running(tmp_path, configs, settings(), toolset))
        targets = sum(len(c["targets"]) + len(c.get("sidecar", {}).get("targets", [])) for c in configs)
        room.scraped(targets)
        everything.enter_context(restarting(restarts, every=DOWN_SECONDS * 10))
        deadline = time.monotonic() + MINUTES * 60
        while time.monotonic() < deadline:
            time.sleep(2)
            assert fired(room) <= {"Watchdog"}, room.states()
        groups = room.prometheus.get_json("/api/v1/rules")["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        assert not [(rule["name"], rule["lastError"]) for rule in found if rule["health"] == "err"]
        armed = {rule["name"] for rule in found if rule["type"] == "alerting"}
        assert armed == set(settings())
        healthy.inject("gone")
        servers.wait_until(lambda: "EngineDown" in fired(room), "EngineDown: the alerts were awake", 120)
        assert room.prometheus.query('resets(vllm:generation_tokens_total{service="restarting"}[1h]) > 0')
        assert {name for n in room.receiver.notifications for name in n.names()} <= {"Watchdog", "EngineDown"}
