"""Which sub-commands of ``npu-smi`` are due: only for what the table lacks, rarely, and never more than needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from k3observe.exporters.npu.devices import Key, Snapshot
from k3observe.exporters.npu.exposition import health, lacks_power

Kind = Literal["common", "ecc", "health"]

ECC_SECONDS = 60.0
COMMON_SECONDS = 3600.0
RETRY_SECONDS = 60.0
UNSUPPORTED_SECONDS = 3600.0


class Call(NamedTuple):
    """``npu-smi info -t KIND -i NPU [-c CHIP]``."""

    kind: Kind
    npu: int
    chip: int | None = None

    @property
    def args(self) -> tuple[str, ...]:
        """Its arguments."""
        chip = () if self.chip is None else ("-c", str(self.chip))
        return ("info", "-t", self.kind, "-i", str(self.npu), *chip)


class Tried(NamedTuple):
    """When a call was last made (monotonic seconds), and how long it need not be made again."""

    at: float
    rest: float


def due(snapshot: Snapshot, tried: Mapping[Call, Tried], now: float) -> list[Call]:
    """Return the calls to make now, the longest untried first.

    ``common`` once an hour, for chips whose utilization the table only pretends to have, and at each table for NPUs
    whose power is not in it; ``health`` at each table for chips that are not OK; ``ecc`` every minute.
    """
    readable = {key: known.row for key, known in snapshot.devices.items() if known.row is not None}
    npus = sorted({key.npu for key in readable})
    calls = [
        Call("health", key.npu, key.chip if row.second.has_chip_id else None)
        for key, row in readable.items() if health(row) != 1
    ]
    calls += [Call("common", npu) for npu in npus]
    calls += [Call("ecc", npu) for npu in npus]
    return sorted(
        (call for call in calls if call not in tried or now >= tried[call].at + tried[call].rest),
        key=lambda call: tried[call].at if call in tried else -1.0)


def rest_after(call: Call, snapshot: Snapshot) -> float:
    """Return for how many seconds the result of a good call stays good."""
    if call.kind == "ecc":
        return ECC_SECONDS
    if call.kind == "common" and not lacks_power(call.npu, snapshot.devices):
        return COMMON_SECONDS
    return 0.0


def keys_of(call: Call, snapshot: Snapshot) -> tuple[Key, ...]:
    """Return the devices that a call speaks of."""
    return tuple(key for key in snapshot.devices if key.npu == call.npu and call.chip in (None, key.chip))
