"""One fault for each action: told to the right receiver in time, and told again when it is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from k3observe.drill import stack
from k3observe.drill.binaries import Release
from k3observe.drill.stack import Node
from k3observe.drill.traffic import Load, traffic

from .room import EVALUATION, GROUP_WAIT, SCRAPE, Room, running

WINDOW = 4.0
"""Seconds: the shortest window at these intervals."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, the alert and action that follow, and how it ends."""

    action: str
    alert: str
    for_: float
    settles: float
    """Seconds until the signal itself tells: what its source averages or polls."""
    inject: Callable[[Node], None]
    heal: Callable[[Node], None]

    @property
    def bound(self) -> float:
        """Seconds from the fault to the notification."""
        return self.settles + self.for_ + SCRAPE + 2 * EVALUATION + GROUP_WAIT + 2


def fill(node: Node) -> None:
    traffic(node.engine.replay, "vllm", Load(cache=0.97, running=16))


def relax(node: Node) -> None:
    traffic(node.engine.replay, "vllm", Load())


def skew(node: Node) -> None:
    assert node.experts is not None
    node.experts.skew(hot=3, factor=7.5)


def even(node: Node) -> None:
    assert node.experts is not None
    node.experts.even()


def lose(node: Node) -> None:
    assert node.gpus is not None
    node.gpus.set({"cards": "0 1 2 3 4 6 7"})


def find_again(node: Node) -> None:
    assert node.gpus is not None
    node.gpus.set({"cards": "0 1 2 3 4 5 6 7"})


def go_away(node: Node) -> None:
    node.engine.inject("gone")


def come_back(node: Node) -> None:
    node.engine.heal()


def process_of(address: str | None) -> int:
    """The process that listens on an address of this machine."""
    assert address is not None
    needle = f"--web.listen-address\0{address}\0".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cmdline").read_bytes().endswith(needle):
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError(f"nothing listens on {address}")


def stop_sidecar(node: Node) -> None:
    os.kill(process_of(node.sidecar), signal.SIGSTOP)


def go_on(node: Node) -> None:
    os.kill(process_of(node.sidecar), signal.SIGCONT)


FAULTS = (
    # three of the four samples of the window must be high: two more scrapes than the first
    Fault("scale_out", "KVCacheUsageHigh", 3, WINDOW / 2, fill, relax),
    # a fifth of the sidecar's window of 10 s must be skewed; the plugin publishes and the sidecar polls every second
    Fault("rebalance", "ExpertLoadVarianceHigh", 3, 2.5 + 1 + 1, skew, even),
    Fault("replace_device", "AcceleratorLost", 3, 1, lose, find_again),
    Fault("restart_engine", "EngineDown", 3, 0, go_away, come_back),
    # a process that does not answer is down when the scrape times out, after a second
    Fault("investigate", "ExporterDown", 3, 1, stop_sidecar, go_on),
)  # fmt: skip


class Scene(NamedTuple):
    """The room and the node that faults happen to; a second node stays well."""

    room: Room
    node: Node


@pytest.fixture(scope="module", params=["3.5"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    release: Release = request.param
    folder = tmp_path_factory.mktemp("actions")
    alerts = {fault.alert: {"for": f"{fault.for_:g}s", "keep_firing_for": "0s"} for fault in FAULTS}
    alerts["KVCacheUsageHigh"]["window"] = f"{WINDOW:g}s"
    with ExitStack() as everything:
        service = everything.enter_context(stack.vllm(folder / "simulated"))
        room = everything.enter_context(running(folder, [service.config], alerts, release))
        room.scraped(4)
        room.notified("Watchdog", "firing", 30)
        yield Scene(room, service.nodes[0])


@pytest.mark.long
@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.action)
def test_a_fault_reaches_the_receiver_of_its_action_in_time_and_so_does_its_end(
    fault: Fault, toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, scene: Scene
) -> None:
    room, node = scene
    assert fault.alert not in room.states()
    began = time.monotonic()
    fault.inject(node)
    try:
        notification, alert = room.notified(fault.alert, "firing", fault.bound + 10)
        took = time.monotonic() - began
    finally:
        fault.heal(node)
    assert took <= fault.bound, f"{fault.alert} took {took:.1f} s, at most {fault.bound:g} s are allowed"
    assert (alert["labels"]["action"], alert["labels"]["service"]) == (fault.action, "kimi-k3")
    assert notification.payload["receiver"] == fault.action.replace("_", "-")
    room.notified(fault.alert, "resolved", 40)
    assert room.paths(fault.alert) == {fault.action}
