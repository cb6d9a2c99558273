"""One reading of one card: which calls, and what each kind of error means.

- ``not_supported`` and its kin are a property of the part (unified memory, MIG, vGPU): no value and no failure.
- ``gpu_is_lost`` and its kin end the reading: none of its values may be believed.
- Any other error leaves one value out and is named in the sample.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from k3observe.exporters.gpu.nvml import Nvml, NvmlError, handle_key
from k3observe.exporters.gpu.sample import CardReading, Identity, Sample

_T = TypeVar("_T")

DEADLINE = "deadline"
PROPERTIES = frozenset({"not_supported", "function_not_found", "argument_version_mismatch", "vgpu_ecc_not_supported",
                        "freq_not_supported", "deprecated"})
FATAL = frozenset({"gpu_is_lost", "gpu_not_found", "reset_required", "uninitialized", "driver_not_loaded", DEADLINE})
MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS

THROTTLE_BITS = {
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
"""Reasons that hold clocks down; idle, application clocks, sync boost and display settings are wishes of the user."""


class CardError(Exception):
    """A reading that failed as a whole, by the name of the error; ``uuid`` where it got that far."""

    def __init__(self, name: str, uuid: str | None = None) -> None:
        super().__init__(name)
        self.name, self.uuid = name, uuid


class Reader:
    """Reads cards; ``devices`` are the UUIDs of cards or MIG instances to read, None for all cards and instances."""

    def __init__(self, nvml: Nvml, devices: Container[str] | None = None) -> None:
        self._nvml, self._devices = nvml, devices
        self._reading: set[int] = set()
        self._uuids: dict[int, str] = {}
        self._lock = threading.Lock()

    def read(self, index: int, overdue: Callable[[], bool], watch: Callable[[Any, str], None]) -> CardReading:
        """Read the card at an index and its MIG instances.

        ``overdue`` is asked before each call, so that a slow card is given up between two of them. ``watch`` gets the
        handle and the UUID of a card that answers, to listen to its events. Raises CardError.
        """
        try:
            handle = self._nvml.handle(index)
        except NvmlError as error:
            raise CardError(error.name) from None
        with self._alone(handle_key(handle)):
            return self._read(index, handle, overdue, watch)

    @contextmanager
    def _alone(self, key: int) -> Iterator[None]:
        """Keep two threads from one card, which an index may lead to when the driver has numbered the cards anew."""
        with self._lock:
            if key in self._reading:
                raise CardError("busy", self._uuids.get(key))
            self._reading.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._reading.discard(key)

    def _read(
        self, index: int, handle: Any, overdue: Callable[[], bool], watch: Callable[[Any, str], None]
    ) -> CardReading:
        uuid: str | None = None
        try:
            uuid, bus = self._names(handle, overdue)
            self._uuids[handle_key(handle)] = uuid
            card = Identity(str(index), uuid, uuid, bus=bus)
            instances = self._instances(handle, overdue)
            samples = [
                self._read_instance(card, slot, instance, own_uuid, overdue)
                for slot, instance, own_uuid in instances or () if self._wanted(own_uuid)]
            if self._wanted(uuid):
                card = replace(card, product=_optional(lambda: self._nvml.product(handle)))
                sample = _Calls(self._nvml, handle, overdue, refusable=instances is not None).sample(card)
                if any(instance.memory for instance in samples):
                    sample = replace(sample, memory=None)  # the instances' memory is the card's: count it once
                samples.insert(0, sample)
                watch(handle, uuid)
        except NvmlError as error:
            raise CardError(error.name, uuid) from None
        return CardReading(uuid, tuple(samples))

    def _wanted(self, uuid: str) -> bool:
        return self._devices is None or uuid in self._devices

    def _names(self, handle: Any, overdue: Callable[[], bool]) -> tuple[str, str]:
        """Return what identifies the card, its UUID or where it has none its bus id, and its bus id."""
        _check(overdue)
        bus = _optional(lambda: self._nvml.bus(handle))
        uuid = _optional(lambda: self._nvml.uuid(handle)) or bus
        if not uuid:
            raise NvmlError("not_found", "nvmlDeviceGetUUID")
        return uuid, bus

    def _instances(self, handle: Any, overdue: Callable[[], bool]) -> list[tuple[int, Any, str]] | None:
        """Return slot, handle and UUID of the MIG instances, None for a card that is not partitioned.

        A container that was given instances may not ask their parent: its refusal counts as partitioned only where
        there are some.
        """
        _check(overdue)
        enabled = self._answer(lambda: self._nvml.mig_enabled(handle), refused=None, otherwise=False)
        if enabled is False:
            return None
        instances = []
        for slot in range(self._answer(lambda: self._nvml.mig_slots(handle), refused=0, otherwise=0) or 0):
            _check(overdue)
            try:
                instance = self._nvml.mig_handle(handle, slot)
                instances.append((slot, instance, self._nvml.uuid(instance)))
            except NvmlError as error:
                if error.name in FATAL:
                    raise
                # An empty slot, or an instance of another container.
        return instances if enabled or instances else None

    def _read_instance(
        self, card: Identity, slot: int, instance: Any, own_uuid: str, overdue: Callable[[], bool],
    ) -> Sample:
        product = _optional(lambda: self._nvml.product(instance))
        identity = Identity(f"{card.device}/{slot}", card.uuid, own_uuid, product, card.bus)
        return _Calls(self._nvml, instance, overdue, refusable=True).instance(identity)

    def _answer(self, call: Callable[[], _T], *, refused: _T | None, otherwise: _T) -> _T | None:
        try:
            return call()
        except NvmlError as error:
            if error.name in FATAL:
                raise
            return refused if error.name == "no_permission" else otherwise


class _Calls:
    """The value calls of one device, with their errors collected."""

    def __init__(self, nvml: Nvml, handle: Any, overdue: Callable[[], bool], *, refusable: bool) -> None:
        self._nvml, self._handle, self._overdue = nvml, handle, overdue
        self._properties = PROPERTIES | {"no_permission"} if refusable else PROPERTIES
        self._errors: list[str] = []
        self._answers = 0

    def sample(self, card: Identity) -> Sample:
        nvml = self._nvml
        bits = self._value(nvml.throttle_reasons)
        remap_failure = self._value(nvml.row_remap_failure)
        recovery = self._value(nvml.recovery_action)
        ecc = (("corrected", self._value(lambda handle: nvml.ecc_errors(handle, uncorrected=False))),
               ("uncorrected", self._value(lambda handle: nvml.ecc_errors(handle, uncorrected=True))))
        sample = Sample(
            card,
            memory=self._memory(),
            utilization=self._value(nvml.utilization),
            temperature=self._value(nvml.temperature),
            power=self._value(nvml.power),
            power_limit=self._value(nvml.power_limit),
            healthy=False if remap_failure or recovery else None if recovery is None else True,
            ecc_errors=tuple((kind, count) for kind, count in ecc if count is not None),
            throttled=() if bits is None else tuple((name, bool(bits & bit)) for name, bit in THROTTLE_BITS.items()),
            row_remap_failure=remap_failure,
            links=self._links(),
        )
        if not self._answers and "unknown" in self._errors:
            raise NvmlError("unknown", "every call")
        return replace(sample, errors=tuple(self._errors))

    def instance(self, identity: Identity) -> Sample:
        """A MIG instance has memory of its own; clocks, power and utilisation belong to the card."""
        memory = self._memory()
        return Sample(identity, memory=memory, errors=tuple(self._errors))

    def _memory(self) -> Any:
        memory = self._value(self._nvml.memory)
        return memory if memory is not None and memory.total > 0 else None

    def _links(self) -> tuple[bool, ...]:
        states: list[bool] = []
        for link in range(MAX_LINKS):
            _check(self._overdue)
            try:
                states.append(self._nvml.link_active(self._handle, link))
            except NvmlError as error:
                if error.name in FATAL:
                    raise
                if error.name not in self._properties | {"invalid_argument"}:
                    self._errors.append(error.name)
                break
        # A part without bridges answers "inactive" for every link it could have: nothing of it is down.
        return tuple(states) if any(states) else ()

    def _value(self, call: Callable[[Any], _T]) -> _T | None:
        _check(self._overdue)
        try:
            value = call(self._handle)
        except NvmlError as error:
            if error.name in FATAL:
                raise
            if error.name not in self._properties:
                self._errors.append(error.name)
            return None
        self._answers += 1
        return value


def _check(overdue: Callable[[], bool]) -> None:
    if overdue():
        raise NvmlError(DEADLINE, "reading")


def _optional(call: Callable[[], str]) -> str:
    try:
        return call()
    except NvmlError as error:
        if error.name in PROPERTIES or error.name == "no_permission":
            return ""
        raise
