"""A stack under proof: rendered by the real command, run by the real Prometheus and Alertmanager."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from k3observe.drill import servers
from k3observe.drill.binaries import Release, find
from k3observe.drill.servers import Server
from k3observe.drill.webhook import Notification, Receiver, receive

K3OBSERVE = Path(sys.executable).with_name("k3observe")
ACTIONS = ("scale_out", "rebalance", "replace_device", "restart_engine", "investigate")
ALERTMANAGER = {"3.5": "0.33", "2.42": "0.25"}

SCRAPE = EVALUATION = GROUP_WAIT = 1.0
"""Seconds: the shortest that the configuration takes."""


def configuration(
    services: list[dict[str, Any]],
    alerts: Mapping[str, Mapping[str, Any]],
    receiver: Receiver,
    alertmanager: str,
    release: Release = "3.5",
    stack: str = "proof",
    **more: Any,
) -> dict[str, Any]:
    """Return a configuration with intervals of a second and one webhook path for each action."""
    names = (*ACTIONS, "watchdog", "default")
    return {
        "version": 1,
        "stack": stack,
        "runbook_base_url": "https://runbooks.example.com/k3",
        "grafana_url": "https://grafana.example.com",
        "prometheus": {
            "version": release, "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
            "alertmanagers": [alertmanager],
        },
        "alertmanager": {"version": ALERTMANAGER[release]},
        "services": services,
        "alerts": {name: dict(settings) for name, settings in alerts.items()},
        "notify": {
            "group_wait": "1s",
            "group_interval": "1s",
            "receivers": {name.replace("_", "-"): {"webhook": {"url": receiver.url(name)}} for name in names},
            "routes": {name: name.replace("_", "-") for name in names},
        },
        **more,
    }  # fmt: skip


def k3observe(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end."""
    command = [str(K3OBSERVE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, **options)


def render(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write a configuration, render it with the real command, and return the folder of the bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "k3observe.yaml"
    file.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")
    done = k3observe("render", "-f", file, "-o", folder / "bundle")
    assert done.returncode == 0, done.stderr
    return folder / "bundle"


@dataclass
class Room:
    """The running servers, and the clock of a proof."""

    folder: Path
    prometheus: Server
    alertmanager: Server
    receiver: Receiver
    arrivals: dict[int, float] = field(default_factory=dict)

    def states(self) -> dict[str, str]:
        """Return the state of each active alert, firing before pending."""
        alerts = self.prometheus.get_json("/api/v1/alerts")["data"]["alerts"]
        return {a["labels"]["alertname"]: a["state"] for a in sorted(alerts, key=lambda a: a["state"], reverse=True)}

    def scraped(self, targets: int, seconds: float = 30) -> None:
        """Wait until so many targets of the stack are up, each scraped by one job only."""

        def all_up() -> bool:
            found = self.prometheus.get_json("/api/v1/targets", state="active")["data"]["activeTargets"]
            active = [target for target in found if "stack" in target["labels"]]
            assert len(active) <= targets, sorted((t["scrapePool"], t["scrapeUrl"]) for t in active)
            return len(active) == targets and all(target["health"] == "up" for target in active)

        servers.wait_until(all_up, f"{targets} targets up", seconds)

    def notified(
        self, alert: str, status: str, seconds: float, labels: Mapping[str, str] | None = None
    ) -> tuple[Notification, dict[str, Any]]:
        """Wait for a notification of this alert; return it and the alert in it."""

        def inside(notification: Notification) -> dict[str, Any] | None:
            for item in notification.alerts:
                wanted = {"alertname": alert, **(labels or {})}
                if item["status"] == status and wanted.items() <= item["labels"].items():
                    return item
            return None

        notification = self.receiver.wait_for(lambda n: inside(n) is not None, seconds)
        item = inside(notification)
        assert item is not None
        return notification, item

    def paths(self, alert: str) -> set[str]:
        """Return the webhook paths that have been told of an alert."""
        return {n.path.strip("/") for n in self.receiver.notifications if alert in n.names()}


@contextmanager
def running(
    folder: Path, services: list[dict[str, Any]], alerts: Mapping[str, Mapping[str, Any]],
    release: Release = "3.5", **more: Any,
) -> Iterator[Room]:  # fmt: skip
    """Render a bundle for these services and run the servers of a release on it; all programs must be there."""
    with ExitStack() as stack:
        receiver = stack.enter_context(receive())
        port = servers.free_port()
        document = configuration(services, alerts, receiver, f"127.0.0.1:{port}", release, **more)
        bundle = render(folder, document)
        alertmanager = stack.enter_context(servers.alertmanager(
            find("alertmanager", release).path, bundle / "alertmanager/alertmanager.yml", folder, port))  # fmt: skip
        prometheus = stack.enter_context(servers.prometheus(
            find("prometheus", release).path, bundle / "prometheus/prometheus.yml", folder))  # fmt: skip
        yield Room(folder, prometheus, alertmanager, receiver)


def members(session: int) -> dict[int, str]:
    """Return the living processes of a session: pid and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
    return found


def nothing_left(session: int, seconds: float = 15) -> None:
    """Wait until a session has no process; fail with what is left."""
    deadline = time.monotonic() + seconds
    while left := members(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def end_session(session: int) -> None:
    """Kill what is left of a session that this test started, so that a failed test leaves nothing behind."""
    for pid in members(session):
        os.kill(pid, 9)
