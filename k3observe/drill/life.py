"""A story for the simulated services, so that the dashboards have something to show.

Traffic that comes and goes; an engine whose cache fills up until requests queue and are preempted; a rank that gets hot
and a rebalance that evens it; a card that gets hot and is throttled; a chip that falls ill.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from k3observe.drill.devices import npu_smi
from k3observe.drill.stack import MEMORY, Node, Service
from k3observe.drill.traffic import Load, traffic

HW_SLOWDOWN = 0x8
"""NVML's bit for a clock that hardware holds down."""

Scene = Callable[[Node, int, float, float], None]
"""Node, its number, how far the story is (0 to 1), seconds since it began."""


def wave(now: float, period: float, low: float, high: float, shift: float = 0.0) -> float:
    """A value that swings between two others."""
    return low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * (now / period + shift)))


def vllm(node: Node, index: int, part: float, now: float) -> None:
    """The first of the engines is overloaded in the middle; its rank 3 is hot from a quarter until a rebalance.

    Then one of its layers is uneven. At the end rank 5 of the second gets hot.
    """
    full = index == 0 and 0.5 <= part < 0.75
    waiting = round(wave(now, 20, 5, 12)) if full else 0
    requests = wave(now, 70, 2.5, 5.5, 0.3 * index) * (1.7 if full else 1.0)
    cache = 0.96 if full else wave(now, 70, 0.42, 0.68, 0.3 * index)
    load = Load(
        requests=requests, first_token=wave(now, 50, 0.5, 1.1) * (9 if full else 1), cache=cache,
        between_tokens=wave(now, 90, 0.025, 0.035) * (1.6 if full else 1), running=round(16 * cache),
        preempted=0.4 * full,
        waiting=waiting, hits=wave(now, 120, 0.86, 0.93, 0.2 * index),
        failed=0.012 if full else 0.0005,
    )  # fmt: skip
    traffic(node.engine.replay, "vllm", load)
    hot = index == 0 and 0.25 <= part < 0.6
    if node.experts is not None:
        if hot:
            node.experts.skew(hot=3, factor=2.6)
        elif index == 0 and node.experts.hot:
            node.experts.rebalance(time.time())
        elif index == 0:
            node.experts.favour(41 if 0.72 <= part < 0.9 else None)
        elif index == 1 and part >= 0.86:
            node.experts.skew(hot=5, factor=1.9)
    if node.gpus is not None:
        node.gpus.set(_cards(index, 3 if hot else 5 if index == 1 and part >= 0.86 else None, part, now))


def _cards(index: int, hot: int | None, part: float, now: float) -> dict[str, object]:
    """Cards that compute draw power, cards that wait for another draw less; all of them look busy."""
    settings: dict[str, object] = {}
    throttled = index == 1 and 0.4 <= part < 0.65
    if index == 0 and part >= 0.6:
        settings["gpu.2.xid"] = "31"
    for card in range(8):
        power = 640.0 if card == hot else 560.0 if hot is None else 430.0
        power += wave(now, 30, -15, 15, card / 8)
        heat = wave(now, 60, 60, 66, card / 8) + (6 if card == hot else 0)
        if throttled and card == 5:
            power, heat = 330.0, 91.0
        settings |= {
            f"gpu.{card}.power": int(power * 1000), f"gpu.{card}.temperature": int(heat),
            f"gpu.{card}.utilization": int(wave(now, 25, 88, 99, card / 8)),
            f"gpu.{card}.throttle": HW_SLOWDOWN if throttled and card == 5 else 0,
            f"gpu.{card}.memory.used": int(MEMORY * (0.918 + 0.001 * card + (0.02 * part if card == 6 else 0))),
        }  # fmt: skip
    return settings


def sglang(node: Node, index: int, part: float, now: float) -> None:
    """Calm traffic."""
    cache = wave(now, 80, 0.25, 0.5)
    traffic(node.engine.replay, "sglang", Load(requests=wave(now, 80, 1.2, 2.6), cache=cache, running=round(20 * cache),
                                               first_token=wave(now, 40, 0.3, 0.6), hits=wave(now, 100, 0.5, 0.7)))


def mindie(node: Node, index: int, part: float, now: float) -> None:
    """Calm traffic; a chip warns from three fifths to four fifths of the story."""
    cache = wave(now, 60, 0.4, 0.6)
    traffic(node.engine.replay, "mindie", replace(Load(), requests=wave(now, 60, 0.7, 1.4), cache=cache,
                                                  running=round(16 * cache), first_token=wave(now, 45, 0.9, 1.5)))
    if node.npus is not None:
        state = npu_smi.cards("910", 8, used=57_000)
        for number, npu in enumerate(state["npus"]):
            chip = npu["chips"][0]
            chip["busy"], chip["celsius"] = int(wave(now, 30, 75, 95, number / 8)), int(wave(now, 50, 52, 58,
                                                                                             number / 8))
            chip["watts"] = wave(now, 30, 260, 310, number / 8)
            if number == 2 and 0.6 <= part < 0.8:
                chip["health"] = "Alarm"
        npu_smi.write_state(node.npus, state)


SCENES: dict[str, Scene] = {"vllm": vllm, "sglang": sglang, "mindie": mindie}


@contextmanager
def living(services: Sequence[Service], seconds: float) -> Iterator[None]:
    """Play the story over so many seconds, then go on with its end, until the block ends."""
    done, began = threading.Event(), time.monotonic()

    def step() -> None:
        now = time.monotonic() - began
        for service in services:
            scene = SCENES[service.config["engine"]["name"]]
            for index, node in enumerate(service.nodes):
                scene(node, index, min(1.0, now / seconds), now)

    def run() -> None:
        while not done.wait(1.0):
            step()

    step()
    thread = threading.Thread(target=run, name="simulated-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=5)
