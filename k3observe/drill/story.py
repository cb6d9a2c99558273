"""The demonstration: a simulated K3 service, real sidecars and servers, three faults and their notifications."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3observe import bundle
from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.launch import read
from k3observe.config.loader import loads
from k3observe.config.starter import starter
from k3observe.drill import binaries, servers, stack
from k3observe.drill.stack import Node
from k3observe.drill.traffic import Load, traffic
from k3observe.drill.webhook import Notification, Receiver, receive
from k3observe.lint.programs import run_tests
from k3observe.plan import plan
from k3observe.render.bundle import render
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

COMMAND = (
    "vllm serve moonshotai/Kimi-K3 --served-model-name kimi-k3 --tensor-parallel-size 8 --enable-expert-parallel "
    "--enable-eplb --enable-prefix-caching --gpu-memory-utilization 0.92 --max-num-seqs 16"
)

Say = Callable[[str], None]


class StoryError(RuntimeError):
    """Something that must happen in the demonstration did not."""


@dataclass(frozen=True)
class Running:
    """The demonstration while it runs."""

    folder: Path
    prometheus: servers.Server
    alertmanager: servers.Server
    receiver: Receiver
    nodes: list[Node]


@dataclass(frozen=True)
class Fault:
    """A fault, the alert it must raise, and the receiver that its action is routed to."""

    title: str
    alert: str
    receiver: str
    inject: Callable[[Node], None]
    heal: Callable[[Node], None]


def _fill_cache(node: Node) -> None:
    traffic(node.engine.replay, "vllm", replace(Load(), cache=0.97, running=16, first_token=6.0))


def _relax(node: Node) -> None:
    traffic(node.engine.replay, "vllm", Load())


def _skew(node: Node) -> None:
    assert node.experts is not None
    node.experts.skew(hot=3, factor=4.0)


def _even(node: Node) -> None:
    assert node.experts is not None
    node.experts.even()


def _lose_card(node: Node) -> None:
    assert node.gpus is not None
    node.gpus.set({"cards": "0 1 2 3 4 6 7"})


def _return_card(node: Node) -> None:
    assert node.gpus is not None
    node.gpus.set({"cards": "0 1 2 3 4 5 6 7"})


FAULTS = (
    Fault("the KV cache of one engine fills up to 97 %", "KVCacheUsageHigh", "scaler", _fill_cache, _relax),
    Fault("expert rank 3 gets four times its share of tokens", "ExpertLoadVarianceHigh", "rebalancer", _skew, _even),
    Fault("a GPU falls off the bus", "AcceleratorLost", "devices", _lose_card, _return_card),
)


def configuration(service: dict[str, Any], receiver: Receiver, prometheus: str, alertmanager: str) -> str:
    """The configuration of the demonstration: that of production, but with intervals and ``for``s of seconds."""
    document = {
        "version": 1,
        "stack": "demo",
        "runbook_base_url": "https://runbooks.example.com",
        "prometheus": {
            "version": "3.5", "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s",
            "address": prometheus, "alertmanagers": [alertmanager],
        },
        "alertmanager": {"version": "0.33"},
        "services": [service],
        "alerts": {
            "KVCacheUsageHigh": {"for": "5s", "keep_firing_for": "1s", "window": "8s"},
            "ExpertLoadVarianceHigh": {"for": "5s"},
            "AcceleratorLost": {"for": "3s"},
        },
        "notify": {
            "group_wait": "1s",
            "group_interval": "2s",
            "receivers": {
                name: {"webhook": {"url": receiver.url(name)}}
                for name in ("scaler", "rebalancer", "devices", "watchdog", "oncall")
            },
            "routes": {
                "scale_out": "scaler", "rebalance": "rebalancer", "replace_device": "devices",
                "watchdog": "watchdog", "default": "oncall",
            },
        },
    }  # fmt: skip
    return "# A demonstration: intervals of seconds, so that nobody waits minutes for an alert.\n" + to_yaml(document)


@contextmanager
def running(folder: Path, say: Say) -> Iterator[Running]:
    """Start everything, render the bundle for it, test it, and run the real servers on it."""
    found = {name: binaries.find(name) for name in ("prometheus", "alertmanager", "promtool")}
    with ExitStack() as everything:
        text, _ = starter(read(COMMAND))
        say(f"$ k3observe init --from-command '{COMMAND}'")
        (folder / "k3observe.yaml").write_text(text, encoding="utf-8")
        say("  the configuration is there; for this demonstration it gets local addresses and intervals of seconds")
        service = everything.enter_context(stack.vllm(folder / "simulated"))
        for node in service.nodes:
            say(f"  simulated engine vLLM 0.33  http://{node.engine.address}/metrics")
            say(f"  real sidecar, 8 fake GPUs   http://{node.sidecar}/metrics")
        receiver = everything.enter_context(receive())
        port, own = servers.free_port(), servers.free_port()
        config = configuration(service.config, receiver, f"127.0.0.1:{own}", f"127.0.0.1:{port}")
        (folder / "k3observe.yaml").write_text(config, encoding="utf-8")
        _render(folder, config, say)
        routes, scrape = folder / "bundle/alertmanager/alertmanager.yml", folder / "bundle/prometheus/prometheus.yml"
        alertmanager = everything.enter_context(
            servers.alertmanager(found["alertmanager"].path, routes, folder / "data", port))
        prometheus = everything.enter_context(
            servers.prometheus(found["prometheus"].path, scrape, folder / "data", own))
        say(f"  Prometheus    {prometheus.url}")
        say(f"  Alertmanager  {alertmanager.url}")
        yield Running(folder, prometheus, alertmanager, receiver, service.nodes)


def _render(folder: Path, config: str, say: Say) -> None:
    loaded = loads(config, str(folder / "k3observe.yaml"))
    made = plan(loaded, load_catalogue([]), load_rules())
    say("$ k3observe render -o bundle")
    changed = bundle.write(folder / "bundle", render(made))
    say(f"  {len(changed)} files in {folder / 'bundle'}, {len(made.armed)} alerts armed")
    # those of the alerts that are shown: at intervals of a second promtool needs a minute and more for all of them
    shown = ("Watchdog", *(fault.alert for fault in FAULTS))
    tests = [folder / f"bundle/prometheus/tests/demo-{alert}.yml" for alert in shown]
    say(f"$ promtool test rules bundle/prometheus/tests/demo-{{{','.join(shown)}}}.yml")
    for test in run_tests(tests):
        if not test.passed:
            raise StoryError(f"the rendered unit tests fail:\n{test.said}")
    say(f"  promtool: {len(tests)} test files pass")


def tell(here: Running, say: Say) -> None:
    """Wait for health, inject each fault, show its alert and notification, heal it, show that it resolves.

    Raises StoryError when something does not come in time.
    """
    _wait(30, "every target is scraped", lambda: _up(here))
    say(f"  all {len(here.nodes) * 2} targets are up")
    _notified(here, "watchdog", "Watchdog", "firing", 30)
    say("  Watchdog arrived: the way from Prometheus to a receiver works")
    _wait(30, "nothing fires while all is well", lambda: _states(here) == {"Watchdog": "firing"})
    say("  nothing else fires")
    node = here.nodes[0]
    for fault in FAULTS:
        say(f"\nFault: {fault.title}")
        began = time.monotonic()
        fault.inject(node)
        for states in (("pending", "firing"), ("firing",)):
            reached = _reached(here, fault.alert, states)
            say(f"  {time.monotonic() - began:4.0f} s  {fault.alert} is {reached}")
        notification = _notified(here, fault.receiver, fault.alert, "firing", 30)
        say(f"  {time.monotonic() - began:4.0f} s  {fault.receiver} was notified (action {_action(notification)}):")
        say(_shown(notification, fault.alert))
        fault.heal(node)
        _notified(here, fault.receiver, fault.alert, "resolved", 60)
        say(f"  {time.monotonic() - began:4.0f} s  healed: {fault.receiver} was told that it is resolved")


def _reached(here: Running, alert: str, states: tuple[str, ...]) -> str:
    """Wait until an alert is in one of these states, and return the one."""
    _wait(60, f"{alert} is {states[0]}", lambda: _states(here).get(alert) in states)
    return _states(here).get(alert, states[-1])


def _up(here: Running) -> bool:
    samples = here.prometheus.query('up{stack="demo"}')
    return len(samples) == len(here.nodes) * 2 and all(sample["value"][1] == "1" for sample in samples)


def _states(here: Running) -> dict[str, str]:
    alerts = here.prometheus.get_json("/api/v1/alerts")["data"]["alerts"]
    worst_last = sorted(alerts, key=lambda alert: alert["state"], reverse=True)
    return {alert["labels"]["alertname"]: alert["state"] for alert in worst_last}


def _notified(here: Running, receiver: str, alert: str, status: str, seconds: float) -> Notification:
    def wanted(notification: Notification) -> bool:
        return notification.path.strip("/") == receiver and any(
            item["labels"]["alertname"] == alert and item["status"] == status for item in notification.alerts
        )

    try:
        return here.receiver.wait_for(wanted, seconds)
    except TimeoutError as error:
        raise StoryError(f"{alert} ({status}) did not reach {receiver}: {error}") from None


def _wait(seconds: float, what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise StoryError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def _action(notification: Notification) -> str:
    return str(notification.alerts[0]["labels"]["action"])


def _shown(notification: Notification, alert: str) -> str:
    item = next(a for a in notification.alerts if a["labels"]["alertname"] == alert)
    fields = {**item["labels"], **item["annotations"]}
    width = max(map(len, fields))
    return "\n".join(f"          {name:{width}}  {value}" for name, value in fields.items())


