"""What one reading of a card gives: immutable, in base units, None for what the part does not have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``reserved`` is None with drivers older than R510, whose ``used`` then includes it."""

    total: int
    used: int
    free: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which device: ``device`` is the NVML index, or index/slot of a MIG instance, whose ``uuid`` is its parent's.

    ``own_uuid`` differs from ``uuid`` for a MIG instance only.
    """

    device: str
    uuid: str
    own_uuid: str
    product: str = ""
    bus: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One device at one time. ``errors`` are the names of calls' errors that left a value out."""

    identity: Identity
    memory: Memory | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    healthy: bool | None = None
    ecc_errors: tuple[tuple[str, int], ...] = ()
    throttled: tuple[tuple[str, bool], ...] = ()
    row_remap_failure: bool | None = None
    links: tuple[bool, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card and its MIG instances, read one after the other; ``samples`` holds only the devices asked for."""

    uuid: str
    samples: tuple[Sample, ...]
