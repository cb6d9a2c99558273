"""What is known of every card, from all readings so far; the threads write to it, a scrape takes a view of it.

A slot is an NVML index. A card is known by its UUID and may move to another slot when one before it disappears.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from k3observe.exporters.gpu.reading import DEADLINE
from k3observe.exporters.gpu.sample import CardReading, Identity, Sample

State = Literal["pending", "good", "failed", "hung", "lost", "unlisted"]

NAMED_ERRORS = (DEADLINE, "gpu_is_lost", "unknown")
OTHER = "other"
HARDWARE_XIDS = (48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140)
"""XIDs that tell of hardware; they start at 0, so that the first one is seen by ``increase()``."""
MORE_XIDS = 2
"""How many other XIDs of a device get a series of their own; what comes after them is ``other``."""

LOST = frozenset({"gpu_is_lost", "gpu_not_found", "unknown"})
WARNINGS = frozenset({"corrupted_inforom"})


@dataclass(slots=True)
class _Device:
    """A card or a MIG instance."""

    identity: Identity
    sample: Sample | None = None
    success: bool = False
    last_read: float | None = None
    broken: bool = False
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*NAMED_ERRORS, OTHER), 0))

    def count_error(self, name: str) -> None:
        self.errors[name if name in NAMED_ERRORS else OTHER] += 1


@dataclass(slots=True)
class _Slot:
    state: State = "pending"
    uuid: str | None = None
    unidentified: _Device | None = None


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device as a scrape shows it; ``sample`` is None where there is no believable value."""

    identity: Identity
    sample: Sample | None
    success: bool
    last_read: float | None
    healthy: bool | None
    errors: tuple[tuple[str, int], ...]
    xids: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class View:
    """All devices at one time; ``visible`` is None while the driver cannot be asked or has not been yet."""

    driver: str
    visible: int | None
    settled: bool
    devices: tuple[DeviceView, ...]


class Ledger:
    """Thread-safe. ``devices`` are the UUIDs the process answers for, None for all.

    The methods that note a reading return the state that the slot had before.
    """

    def __init__(self, devices: Iterable[str] | None = None) -> None:
        self._named = None if devices is None else tuple(devices)
        self._lock = threading.Lock()
        self._driver = ""
        self._slots: list[_Slot] | None = None
        self._cards: dict[str, _Device] = {}
        self._instances: dict[str, tuple[_Device, ...]] = {}
        self._xids: dict[str, dict[str, int]] = {}

    def listed(self, count: int, driver: str) -> None:
        """Note how many cards the driver lists; those of slots beyond are gone."""
        with self._lock:
            slots = self._slots or []
            self._slots = slots[:count] + [_Slot() for _ in range(count - len(slots))]
            self._driver = driver
            for uuid in {slot.uuid for slot in slots[count:] if slot.uuid}:
                if self._slot_of(uuid) is None:
                    self._drop(uuid)

    def detached(self) -> None:
        """Note that the driver cannot be asked: nothing known of any card holds any more."""
        with self._lock:
            self._slots = None
            for uuid in self._cards.keys() | self._instances.keys():
                self._drop(uuid)

    def read(self, index: int, reading: CardReading, now: float) -> State | None:
        """Note a reading; None when the slot is not listed any more."""
        with self._lock:
            slot = self._slot(index)
            if slot is None:
                return None
            before, moved_from = slot.state, slot.uuid
            slot.state, slot.uuid, slot.unidentified = "good", reading.uuid, None
            if moved_from not in (None, reading.uuid) and self._slot_of(moved_from) is None:
                self._drop(str(moved_from))
            instances = []
            for sample in reading.samples:
                if sample.identity.own_uuid == reading.uuid:
                    _note(self._cards.setdefault(reading.uuid, _Device(sample.identity)), sample, now)
                else:
                    instances.append(self._instance(reading.uuid, sample, now))
            self._instances[reading.uuid] = tuple(instances)
            if any(not device.success for device in self._on_card(reading.uuid)):
                slot.state = "failed"
            return before

    def failed(self, index: int, error: str, uuid: str | None = None) -> State | None:
        """Note a reading that failed as a whole (``deadline``: it is out for too long); None as for ``read``."""
        with self._lock:
            slot = self._slot(index)
            if slot is None:
                return None
            before = slot.state
            slot.state = "hung" if error == DEADLINE else "lost" if error in LOST else "failed"
            slot.uuid = uuid or slot.uuid
            for device in self._failing(index, slot):
                device.sample, device.success = None, False
                device.broken = error in ("gpu_is_lost", "reset_required")
                device.count_error(error)
            return before

    def watching(self, uuid: str) -> None:
        """Start the counts of a card whose events are listened to."""
        with self._lock:
            self._xids.setdefault(uuid, dict.fromkeys(map(str, HARDWARE_XIDS), 0))

    def heard(self, uuid: str, xid: int) -> None:
        """Count an XID event."""
        with self._lock:
            xids = self._xids.setdefault(uuid, dict.fromkeys(map(str, HARDWARE_XIDS), 0))
            known = str(xid) in xids or len(xids) < len(HARDWARE_XIDS) + MORE_XIDS
            label = str(xid) if known else OTHER
            xids[label] = xids.get(label, 0) + 1

    def all_lost(self) -> bool:
        """Whether every listed card is lost: then the attachment is, rather than the cards."""
        with self._lock:
            return bool(self._slots) and all(slot.state == "lost" for slot in self._slots or ())

    def lists(self, index: int) -> bool:
        """Whether the driver lists a card in the slot."""
        with self._lock:
            return self._slot(index) is not None

    def label(self, index: int) -> str:
        """Name a slot for the log."""
        with self._lock:
            slot = self._slot(index)
            return f"GPU {index} ({slot.uuid})" if slot and slot.uuid else f"GPU {index}"

    def view(self) -> View:
        """Return what a scrape shows."""
        with self._lock:
            slots = self._slots or []
            devices = [device for uuid in self._cards.keys() | self._instances.keys() for device in self._on_card(uuid)]
            devices += [slot.unidentified for slot in slots if slot.unidentified]
            if self._named is not None:
                seen = {device.identity.own_uuid for device in devices}
                devices += [_Device(Identity("", uuid, uuid)) for uuid in self._named if uuid not in seen]
            settled = self._slots is not None and all(slot.state != "pending" for slot in slots)
            views = sorted(map(self._device_view, devices), key=lambda device: _order(device.identity))
            return View(self._driver, self._visible(settled), settled, tuple(views))

    def _visible(self, settled: bool) -> int | None:
        if self._slots is None:
            return None
        shown = [slot for slot in self._slots if slot.state != "lost"]
        if self._named is None:
            return len(shown)
        if not settled:
            return None
        here = {device.identity.own_uuid for slot in shown if slot.uuid for device in self._on_card(slot.uuid)}
        # A card that hangs since the start has not told its UUID: it may be one of those.
        nameless = sum(slot.uuid is None for slot in shown)
        return min(len(here) + nameless, len(self._named))

    def _failing(self, index: int, slot: _Slot) -> list[_Device]:
        """Return the devices that a failed reading of a slot concerns."""
        if slot.uuid and (self._named is None or slot.uuid in self._named) and slot.uuid not in self._cards:
            self._cards[slot.uuid] = _Device(Identity(str(index), slot.uuid, slot.uuid))
        if slot.uuid:
            return self._on_card(slot.uuid)
        if self._named is not None:
            return []
        if slot.unidentified is None:
            slot.unidentified = _Device(Identity(str(index), "", ""))
        return [slot.unidentified]

    def _slot(self, index: int) -> _Slot | None:
        return self._slots[index] if self._slots is not None and index < len(self._slots) else None

    def _slot_of(self, uuid: str | None) -> _Slot | None:
        return next((slot for slot in self._slots or () if slot.uuid == uuid), None)

    def _on_card(self, uuid: str) -> list[_Device]:
        card = self._cards.get(uuid)
        return [*([card] if card else []), *self._instances.get(uuid, ())]

    def _instance(self, parent: str, sample: Sample, now: float) -> _Device:
        known = {device.identity.own_uuid: device for device in self._instances.get(parent, ())}
        device = known.get(sample.identity.own_uuid) or _Device(sample.identity)
        _note(device, sample, now)
        return device

    def _device_view(self, device: _Device) -> DeviceView:
        healthy = False if device.broken else device.sample.healthy if device.sample else None
        return DeviceView(device.identity, device.sample, device.success, device.last_read, healthy,
                          tuple(device.errors.items()), tuple(self._xids.get(device.identity.own_uuid, {}).items()))

    def _drop(self, uuid: str) -> None:
        for device in self._on_card(uuid):
            device.sample, device.success, device.broken = None, False, False


def _note(device: _Device, sample: Sample, now: float) -> None:
    device.identity, device.sample, device.broken = sample.identity, sample, False
    for error in sample.errors:
        device.count_error(error)
    device.success = not set(sample.errors) - WARNINGS
    if device.success:
        device.last_read = now


def _order(identity: Identity) -> tuple[object, ...]:
    parts = [int(part) for part in identity.device.split("/") if part.isdigit()]
    return (not parts, parts, identity.uuid)
