"""Goal 11: from an injected fault to the webhook, on real servers, against the theoretical bound.

The bound is ``for`` + one scrape + two evaluations + ``group_wait`` + 2 s. Two faults are measured, in turns: an engine
that goes away, which Prometheus sees by itself, and a GPU that is lost, which a sidecar must see first.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measure import leave

from k3observe import bundle
from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.loader import loads
from k3observe.drill import servers, stack
from k3observe.drill.binaries import find
from k3observe.drill.webhook import Receiver, receive
from k3observe.plan import plan
from k3observe.render.bundle import render
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

ROUNDS = 7
FOR, SCRAPE, EVALUATION, GROUP_WAIT, POLL = 1.0, 1.0, 1.0, 1.0, 1.0
BOUND = FOR + SCRAPE + 2 * EVALUATION + GROUP_WAIT + 2
ALL, SEVEN = "0 1 2 3 4 5 6 7", "0 1 2 3 4 6 7"


def configuration(service: dict[str, Any], hook: str, alertmanager: str) -> str:
    """Intervals of a second, everything to one webhook."""
    return to_yaml({
        "version": 1, "stack": "bench", "services": [service],
        "prometheus": {"version": "3.5", "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
                       "alertmanagers": [alertmanager]},
        "alertmanager": {"version": "0.33"},
        "alerts": {name: {"for": "1s", "keep_firing_for": "0s"} for name in ("EngineDown", "AcceleratorLost")},
        "notify": {"group_wait": "1s", "group_interval": "1s", "receivers": {"all": {"webhook": {"url": hook}}},
                   "routes": {"default": "all"}},
    })  # fmt: skip


def told(receiver: Receiver, alert: str, status: str, since: int) -> float:
    """Wait for a notification after the first ``since``; return when it came."""
    def wanted(notification: Any) -> bool:
        new = notification in receiver.notifications[since:]
        return new and any(a["labels"]["alertname"] == alert and a["status"] == status for a in notification.alerts)

    receiver.wait_for(wanted, 60)
    return time.monotonic()


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as everything:
        folder = Path(name)
        service = everything.enter_context(stack.vllm(folder / "simulated", replicas=2))
        node = service.nodes[0]
        gpus = node.gpus
        assert gpus is not None
        receiver = everything.enter_context(receive())
        port = servers.free_port()
        text = configuration(service.config, receiver.url("all"), f"127.0.0.1:{port}")
        made = plan(loads(text, "bench"), load_catalogue([]), load_rules())
        bundle.write(folder / "bundle", render(made))
        everything.enter_context(servers.alertmanager(
            find("alertmanager").path, folder / "bundle/alertmanager/alertmanager.yml", folder, port))  # fmt: skip
        prometheus = everything.enter_context(servers.prometheus(
            find("prometheus").path, folder / "bundle/prometheus/prometheus.yml", folder))  # fmt: skip
        servers.wait_until(lambda: len(prometheus.query("up == 1")) == 4, "all targets up", 30)
        faults = {
            "EngineDown": (lambda: node.engine.inject("gone"), node.engine.heal, BOUND),
            "AcceleratorLost": (lambda: gpus.set({"cards": SEVEN}), lambda: gpus.set({"cards": ALL}), BOUND + POLL),
        }
        took: dict[str, list[float]] = {alert: [] for alert in faults}
        for _ in range(ROUNDS):
            for alert, (inject, heal, _) in faults.items():
                time.sleep(random.random())  # the last notification came in step with the evaluations
                seen, began = len(receiver.notifications), time.monotonic()
                inject()
                took[alert].append(told(receiver, alert, "firing", seen) - began)
                heal()
                told(receiver, alert, "resolved", seen)
    results = []
    for alert, (_, _, bound) in faults.items():
        worst = max(took[alert])
        results.append(worst <= bound)
        print(f"{'ok  ' if worst <= bound else 'MISS'} goal 11, {alert}: fault to webhook p50 "
              f"{statistics.median(took[alert]):.2f} s, worst of {ROUNDS} {worst:.2f} s (at most {bound:g} s)")
    leave(results)


if __name__ == "__main__":
    main()
