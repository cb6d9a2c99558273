"""The stack behind ``k3observe preview --demo``: simulated services, real sidecars, real servers on our rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from k3observe import bundle
from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.loader import loads
from k3observe.drill import binaries, servers, stack
from k3observe.drill.life import living
from k3observe.drill.webhook import receive
from k3observe.plan import Plan, plan
from k3observe.render.bundle import render
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

SECONDS = 180.0
"""How long the story takes that the simulated services play."""


@contextmanager
def simulated(
    folder: Path, language: str, seconds: float = SECONDS, say: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Plan, servers.Server]]:
    """Run vLLM, SGLang and MindIE services, a Prometheus and an Alertmanager; yield once the story was told.

    Raises BinaryMissingError without these, RuntimeError without a C compiler for the simulated GPUs.
    """
    program, manager = binaries.find("prometheus"), binaries.find("alertmanager")
    port, alerts = servers.free_port(), servers.free_port()
    with ExitStack() as everything:
        made = [everything.enter_context(start(folder / "simulated")) for start in
                (stack.vllm, stack.sglang, stack.mindie)]  # fmt: skip
        receiver = everything.enter_context(receive())
        document = {
            "version": 1,
            "stack": "demo",
            "language": language,
            "runbook_base_url": "https://runbooks.example.com",
            "grafana_url": "https://grafana.example.com",
            "prometheus": {"version": "3.5", "scrape_interval": "2s", "evaluation_interval": "2s",
                           "address": f"127.0.0.1:{port}", "alertmanagers": [f"127.0.0.1:{alerts}"]},
            "alertmanager": {"version": "0.33"},
            "services": [service.config for service in made],
            "notify": {"group_wait": "1s", "group_interval": "2s",
                       "receivers": {"oncall": {"webhook": {"url": receiver.url("oncall")}}},
                       "routes": {"default": "oncall"}},
            "alerts": {"KVCacheUsageHigh": {"for": "15s", "window": "10s"}, "ExpertLoadVarianceHigh": {"for": "15s"},
                       "ExpertBalanceLow": {"for": "15s"}, "RequestsQueueing": {"for": "15s"}},
        }  # fmt: skip
        planned = plan(loads(to_yaml(document), "demo.yaml"), load_catalogue([]), load_rules())
        bundle.write(folder / "bundle", render(planned))
        everything.enter_context(servers.alertmanager(
            manager.path, folder / "bundle/alertmanager/alertmanager.yml", folder / "data", alerts))  # fmt: skip
        began = time.monotonic()
        everything.enter_context(living(made, seconds))
        server = everything.enter_context(servers.prometheus(
            program.path, folder / "bundle/prometheus/prometheus.yml", folder / "data", port))  # fmt: skip
        while (rest := seconds - (time.monotonic() - began)) > 0:
            say(f"the simulated services play their story: {rest:.0f} s")
            time.sleep(min(rest, 5.0))
        yield planned, server
