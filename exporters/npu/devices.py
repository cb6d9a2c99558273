"""What is known of the devices: a table or a failure of the tool turns one snapshot into the next.

A device once seen stays known, so that its loss shows: it keeps ``read_success 0``, its error counters and the time of
its last good read, and loses all values. Nothing here reads a clock or a device.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from k3observe.exporters.npu.runner import HUNG, TIMEOUT
from k3observe.exporters.npu.table import MAX_DEVICES, Device, FirstRow, Table

MISSING, UNREADABLE, INCOMPLETE, TOOL = "missing", "unreadable", "incomplete", "tool"
READ_ERRORS = (INCOMPLETE, MISSING, TOOL, UNREADABLE)

_WANTED = re.compile(r"[0-9]{1,9}(?:-[0-9]{1,9})?|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")


class Key(NamedTuple):
    """NPU id and chip id; the dies of an A3 and the chips of a 310P duo are devices of their own."""

    npu: int
    chip: int

    def __str__(self) -> str:
        return f"{self.npu}-{self.chip}"


class Known(NamedTuple):
    """A device that was seen; while it cannot be read ``row`` is None and ``error`` says why."""

    uuid: str
    row: Device | None
    last_read: float | None
    error: str | None
    errors: Mapping[str, int]


class Snapshot(NamedTuple):
    """All devices after the last call; ``visible`` is None when the tool did not say which devices there are."""

    devices: Mapping[Key, Known]
    visible: int | None
    driver: str


EMPTY = Snapshot({}, None, "")


def after_table(before: Snapshot, table: Table, wanted: Collection[str], now: float) -> Snapshot:
    """Return the snapshot after a good call at Unix time ``now``; ``wanted`` empty means all devices.

    A chip that answers nothing at all has left, as one that the table no longer lists; one of which only the memory
    or only one row could be read is still there. A die that is listed twice (soft slices) is one device.
    """
    rows: dict[Key, Device] = {}
    for row in table.devices:
        key = Key(row.first.npu, row.second.chip)
        if key not in rows or (rows[key].memory is None and row.memory is not None):
            rows[key] = row
    devices: dict[Key, Known] = {}
    visible = 0
    for key in sorted({*before.devices, *rows}):
        known, listed = before.devices.get(key), rows.get(key)
        bus = listed.second.bus if listed else None
        uuid = bus or (known.uuid if known else "")
        if not is_wanted(key, uuid, wanted) or (known is None and len(devices) >= MAX_DEVICES):
            continue
        if known is None or known.uuid != uuid:
            known = Known(uuid, None, None, None, dict.fromkeys(READ_ERRORS, 0))
        if listed is not None and listed.memory is not None:
            devices[key] = known._replace(row=listed, last_read=now, error=None)
            visible += 1
        elif listed is not None:
            devices[key] = _failed(known, UNREADABLE)
            visible += listed.answers
        elif _has_half(table, key, uuid):
            devices[key] = _failed(known, INCOMPLETE)
            visible += 1
        else:
            devices[key] = _failed(known, MISSING)
    return Snapshot(devices, visible, table.driver or before.driver)


def lost(before: Snapshot, table: Table) -> bool:
    """Whether the table lacks a device that could be read before."""
    listed = {Key(row.first.npu, row.second.chip) for row in table.devices}
    return any(known.row is not None and key not in listed for key, known in before.devices.items())


def after_failure(before: Snapshot, reason: str) -> Snapshot:
    """Return the snapshot after a call that gave no table; a device whose reads hang still counts as visible."""
    devices = {key: _failed(known, TOOL) for key, known in before.devices.items()}
    return before._replace(devices=devices, visible=before.visible if reason in (TIMEOUT, HUNG) else None)


def without_values(before: Snapshot) -> Snapshot:
    """Return the snapshot when it has grown too old to be true."""
    return before._replace(devices={key: known._replace(row=None) for key, known in before.devices.items()})


def is_wanted(key: Key, uuid: str, wanted: Collection[str]) -> bool:
    """Whether ``wanted`` names the device: ``0`` an NPU, ``0-1`` a chip of it, or a bus id."""
    return not wanted or str(key.npu) in wanted or str(key) in wanted or (uuid.upper() in wanted and uuid != "")


def parse_wanted(text: str) -> frozenset[str]:
    """Read the value of ``--npu.devices``.

    Raises:
        ValueError: there is no item, or one is neither an NPU id, a chip of one, nor a bus id.
    """
    items = [item.strip().upper() for item in text.split(",") if item.strip()]
    if wrong := [item for item in items if not _WANTED.fullmatch(item)]:
        raise ValueError(f"{wrong[0]}: write NPU ids (0), chips (0-1) or bus ids (0000:C1:00.0), separated by commas")
    if not items:
        raise ValueError("names no device: leave the flag out for all of them")
    return frozenset(items)


def _failed(known: Known, error: str) -> Known:
    return known._replace(row=None, error=error, errors={**known.errors, error: known.errors[error] + 1})


def _has_half(table: Table, key: Key, uuid: str) -> bool:
    """Whether one of the rows without their other half may be of this device."""
    return any(
        half.npu == key.npu if isinstance(half, FirstRow) else (half.bus, half.chip) == (uuid, key.chip)
        for half in table.incomplete
    )
