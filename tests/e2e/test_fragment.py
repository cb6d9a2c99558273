"""A fragment goes into a Prometheus and an Alertmanager that exist already, and leaves what they did before alone."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3observe.drill import servers, stack
from k3observe.drill.binaries import Release
from k3observe.drill.traffic import Load, traffic
from k3observe.drill.webhook import Receiver, receive

from .room import Room, configuration, render

MUTE = {"nights": {"times": ["00:00-00:01"], "actions": ["rebalance"]}}


def existing(folder: Path, receiver: Receiver, alertmanager: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What somebody has already: a job, a rule that fires, a route to their own receiver."""
    (folder / "theirs.yml").write_text(yaml.safe_dump({"groups": [{"name": "theirs", "rules": [
        {"alert": "TheirAlert", "expr": "vector(1)", "labels": {"severity": "critical"}}]}]}))  # fmt: skip
    prometheus = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["theirs.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "alertmanager", "static_configs": [{"targets": [alertmanager]}]}],
    }
    routing = {
        "route": {"receiver": "theirs", "group_wait": "1s", "routes": []},
        "receivers": [{"name": "theirs", "webhook_configs": [{"url": receiver.url("theirs")}]}],
    }
    return prometheus, routing


def put_in(bundle: Path, folder: Path, prometheus: dict[str, Any], routing: dict[str, Any], by_file: bool) -> None:
    """Do what the fragment's comments tell a person to do."""
    prometheus["rule_files"].append("k3/rules/*.yml")
    shutil.copytree(bundle / "prometheus", folder / "k3")
    if by_file:
        prometheus["scrape_config_files"] = ["k3/proof-scrape.yml"]
    else:
        prometheus["scrape_configs"] += yaml.safe_load((folder / "k3/proof-scrape.yml").read_text())["scrape_configs"]
        shutil.copytree(bundle / "prometheus/targets", folder / "targets")
    snippet = yaml.safe_load((bundle / "alertmanager/proof-route.yml").read_text())
    routing["route"]["routes"] += snippet["route"]["routes"]
    for key in snippet.keys() - {"route"}:
        routing.setdefault(key, []).extend(snippet[key])
    (folder / "prometheus.yml").write_text(yaml.safe_dump(prometheus))
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routing))


@pytest.mark.long
def test_a_fragment_in_an_existing_prometheus_and_alertmanager_works_beside_what_was_there(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, promtool: Path, amtool: Path, tmp_path: Path
) -> None:
    with ExitStack() as everything:
        service = everything.enter_context(stack.vllm(tmp_path / "simulated", replicas=1, sidecars=False))
        receiver = everything.enter_context(receive())
        port = servers.free_port()
        address = f"127.0.0.1:{port}"
        alerts = {"KVCacheUsageHigh": {"for": "1s", "window": "4s"}}
        config = configuration([service.config], alerts, receiver, address, toolset)
        config["notify"]["mute"] = MUTE
        bundle = render(tmp_path, config | {"outputs": {"prometheus": "fragment"}})
        folder = tmp_path / "etc"
        folder.mkdir()
        prometheus, routing = existing(folder, receiver, address)
        put_in(bundle, folder, prometheus, routing, by_file=toolset == "3.5")
        commands: list[list[str | Path]] = [
            [promtool, "check", "config", folder / "prometheus.yml"],
            [amtool, "check-config", folder / "alertmanager.yml"],
        ]
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        alertmanager = everything.enter_context(servers.alertmanager(
            alertmanager_bin, folder / "alertmanager.yml", tmp_path, port))  # fmt: skip
        server = everything.enter_context(servers.prometheus(prometheus_bin, folder / "prometheus.yml", tmp_path))
        room = Room(tmp_path, server, alertmanager, receiver)
        room.scraped(1)
        traffic(service.nodes[0].engine.replay, "vllm", Load(cache=0.97))
        notification, alert = room.notified("KVCacheUsageHigh", "firing", 30)
        assert notification.path == "/scale_out"
        assert alert["labels"]["service"] == "kimi-k3"
        room.notified("TheirAlert", "firing", 10)
        assert (room.paths("TheirAlert"), room.paths("KVCacheUsageHigh")) == ({"theirs"}, {"scale_out"})
        assert room.paths("Watchdog") == {"watchdog"}
