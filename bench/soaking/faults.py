"""The faults of the soak: each breaks something and returns what heals it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from random import Random

from soaking.exposition import read
from soaking.world import CARDS, World

Fault = Callable[[World], Callable[[], None]]


def setting(world: World, key: str, value: object) -> Callable[[], None]:
    """Make a setting of the simulated driver, and return what takes it back."""
    world.gpus.set({key: value})

    def heal() -> None:
        del world.gpus.settings[key]
        world.gpus.set({})

    return heal


def card_hangs(world: World) -> Callable[[], None]:
    return setting(world, f"gpu.{world.random.randrange(CARDS)}.sleep", 3000)


def card_fails(world: World) -> Callable[[], None]:
    error = world.random.choice(["GPU_IS_LOST", "UNKNOWN", "TIMEOUT"])
    world.lost = error in ("GPU_IS_LOST", "UNKNOWN")
    world.truth.set("cards", CARDS - world.lost)
    answer = setting(world, f"gpu.{world.random.randrange(CARDS)}.error", error)

    def heal() -> None:
        answer()
        world.lost = False
        world.truth.set("cards", CARDS)

    return heal


def card_is_lost(world: World) -> Callable[[], None]:
    world.missing = {world.random.randrange(CARDS)}
    world.move()

    def heal() -> None:
        world.missing = set()
        world.move()

    return heal


def driver_is_reloaded(world: World) -> Callable[[], None]:
    world.gpus.set({"epoch": world.random.randrange(10**6)})
    return lambda: None


def npu_smi_fails(world: World) -> Callable[[], None]:
    world.npu_fault = world.random.choice(["hang", "orphan", "flood", "binary", "dcmi", "silent", "killed"])
    world.write_npus()

    def heal() -> None:
        world.npu_fault = None
        world.write_npus()

    return heal


def engine_fails(world: World) -> Callable[[], None]:
    world.engine.inject(world.random.choice(["gone", "hang", "error"]))
    return world.engine.heal


def engine_restarts(world: World) -> Callable[[], None]:
    world.engine.inject("gone")

    def back() -> None:
        world.engine.replay.restart()
        world.engine.heal()

    return back


def log_is_renamed(world: World) -> Callable[[], None]:
    world.log.replace(world.log.with_suffix(".1"))
    world.log.touch()
    return lambda: None


def log_is_truncated(world: World) -> Callable[[], None]:
    world.log.with_suffix(".2").write_bytes(world.log.read_bytes())
    os.truncate(world.log, 0)
    return lambda: None


def log_is_flooded(world: World) -> Callable[[], None]:
    with world.log.open("ab") as file:
        file.write(b"x" * (10 << 20) + b"\n" + bytes(range(256)) * 1000 + b"\n")
    return lambda: None


def plugin_file_is_torn(world: World) -> Callable[[], None]:
    files = sorted(world.published.glob("*.bin"))
    if files:
        path = world.random.choice(files)
        data = path.read_bytes()
        torn = world.random.choice([b"", data[: len(data) // 2], data[:40], os.urandom(len(data)), data + data])
        if world.random.random() < 0.2:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(torn)
    return lambda: None


def scrapers_misbehave(world: World) -> Callable[[], None]:
    """Half-open connections, half a request, and twenty scrapes at once."""
    held = []
    for address in world.addresses:
        host, port = address.split(":")
        for text in (b"", b"GET /metrics HT", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            connection = socket.create_connection((host, int(port)), timeout=5)
            connection.sendall(text)
            held.append(connection)
        crowd = [threading.Thread(target=read, args=(address,)) for _ in range(20)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()

    def heal() -> None:
        for connection in held:
            connection.close()

    return heal


FAULTS = (
    card_hangs, card_fails, card_is_lost, driver_is_reloaded, npu_smi_fails, npu_smi_fails, engine_fails,
    engine_restarts, log_is_renamed, log_is_truncated, log_is_flooded, plugin_file_is_torn, scrapers_misbehave,
)  # fmt: skip


def in_turn(random: Random) -> Iterator[Fault]:
    """Each once in an order of its own, then again in another."""
    while True:
        yield from random.sample(FAULTS, len(FAULTS))
