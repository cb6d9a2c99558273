"""NVML as typed calls: one error type with the name of the error, text from str or bytes, base units.

Nothing here knows what to do about an error. The binding (nvidia-ml-py) is imported with the first call, and keeps one
library a process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from k3observe.exporters.gpu.sample import Memory

_T = TypeVar("_T")

OLDER_DRIVER = ("function_not_found", "argument_version_mismatch")
IMPLAUSIBLE = "implausible"
"""Name of the error of a call that succeeded with a value that cannot be true."""
MOST_DEVICES, MOST_INSTANCES = 256, 64
MOST_MILLIWATTS = 100_000_000
MOST_BYTES = 1 << 50
RECOVERY_ACTION_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers from R570


class NvmlError(Exception):
    """A call that failed; ``name`` is NVML's, lower case (``gpu_is_lost``)."""

    def __init__(self, name: str, call: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name, self.call = name, call


def text(value: str | bytes) -> str:
    """Return what a binding gave for a string, old ones bytes, without what is not UTF-8."""
    decoded = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return decoded.split("\0")[0].strip()


class Nvml:
    """The calls the collector makes. Every method raises NvmlError; ``Any`` is an opaque handle."""

    def __init__(self) -> None:
        self._binding: Any = None
        self._names: dict[int, str] = {}

    def init(self) -> None:
        """Load the library and attach to the driver."""
        if self._binding is None:
            try:
                import pynvml
            except ImportError:
                raise NvmlError("binding_missing", "import pynvml") from None
            self._names = {
                getattr(pynvml, name): name.removeprefix("NVML_ERROR_").lower()
                for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
            self._binding = pynvml
        self._call("nvmlInit")

    def shutdown(self) -> None:
        """Detach from the driver; never while another call is out."""
        self._call("nvmlShutdown")

    def driver_version(self) -> str:
        """Version of the driver."""
        return text(self._call("nvmlSystemGetDriverVersion"))

    def count(self) -> int:
        """How many devices the driver lists."""
        return int(_up_to(MOST_DEVICES, self._call("nvmlDeviceGetCount"), "nvmlDeviceGetCount"))

    def handle(self, index: int) -> Any:
        """Handle of the device at an index. By index: a search by UUID may touch other, hanging, cards."""
        return self._call("nvmlDeviceGetHandleByIndex", index)

    def uuid(self, handle: Any) -> str:
        """UUID of a card or a MIG instance."""
        return text(self._call("nvmlDeviceGetUUID", handle))

    def product(self, handle: Any) -> str:
        """Product name."""
        return text(self._call("nvmlDeviceGetName", handle))

    def bus(self, handle: Any) -> str:
        """PCI bus id as NVML writes it, ``00000000:9D:00.0``."""
        info = self._call("nvmlDeviceGetPciInfo", handle)
        try:
            return text(info.busId)
        except UnicodeDecodeError as error:  # the binding decodes when it is looked at
            return text(error.object)

    def memory(self, handle: Any) -> Memory:
        """Memory; the older call, without ``reserved``, where the driver lacks the newer."""
        def newer() -> Memory:
            version = getattr(self._binding, "nvmlMemory_v2", None)
            if version is None:
                raise NvmlError("function_not_found", "nvmlDeviceGetMemoryInfo_v2")
            info = self._call("nvmlDeviceGetMemoryInfo", handle, version)
            return memory(info, int(info.reserved))

        def older() -> Memory:
            return memory(self._call("nvmlDeviceGetMemoryInfo", handle), None)

        def memory(info: Any, reserved: int | None) -> Memory:
            total = _up_to(MOST_BYTES, info.total, "nvmlDeviceGetMemoryInfo")
            if max(info.used, info.free, reserved or 0) > total > 0:
                raise NvmlError(IMPLAUSIBLE, "nvmlDeviceGetMemoryInfo")
            return Memory(total, int(info.used), int(info.free), reserved)

        return _first(newer, older)

    def utilization(self, handle: Any) -> float:
        """Share of time in which a kernel ran."""
        percent = self._call("nvmlDeviceGetUtilizationRates", handle).gpu
        return _up_to(100, percent, "nvmlDeviceGetUtilizationRates") / 100

    def temperature(self, handle: Any) -> float:
        """Celsius of the chip (sensor 0)."""
        celsius = _first(lambda: self._call("nvmlDeviceGetTemperatureV", handle, 0),
                         lambda: self._call("nvmlDeviceGetTemperature", handle, 0))
        return _up_to(200, celsius, "nvmlDeviceGetTemperature")

    def power(self, handle: Any) -> float:
        """Watts drawn; NVML says milliwatts."""
        return _up_to(MOST_MILLIWATTS, self._call("nvmlDeviceGetPowerUsage", handle), "nvmlDeviceGetPowerUsage") / 1000

    def power_limit(self, handle: Any) -> float:
        """Watts of the limit in force."""
        limit = self._call("nvmlDeviceGetEnforcedPowerLimit", handle)
        return _up_to(MOST_MILLIWATTS, limit, "nvmlDeviceGetEnforcedPowerLimit") / 1000

    def ecc_errors(self, handle: Any, *, uncorrected: bool) -> int:
        """Memory errors since the driver was loaded (NVML's volatile counter, 0)."""
        count = self._call("nvmlDeviceGetTotalEccErrors", handle, int(uncorrected), 0)
        return _up_to(1 << 63, count, "nvmlDeviceGetTotalEccErrors")

    def row_remap_failure(self, handle: Any) -> bool:
        """Whether a memory row could not be remapped."""
        return bool(self._call("nvmlDeviceGetRemappedRows", handle)[3])

    def recovery_action(self, handle: Any) -> int:
        """What the driver asks for to get the device healthy again; 0 is nothing."""
        field = self._call("nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION_FIELD])[0]
        if field.nvmlReturn:
            name = self._names.get(int(field.nvmlReturn), "other")
            # A driver that does not know the field calls its number an invalid argument.
            raise NvmlError("not_supported" if name == "invalid_argument" else name, "nvmlDeviceGetFieldValues")
        return _up_to(255, field.value.uiVal, "nvmlDeviceGetFieldValues")

    def throttle_reasons(self, handle: Any) -> int:
        """Bits of why the clocks are what they are."""
        bits = _first(lambda: self._call("nvmlDeviceGetCurrentClocksEventReasons", handle),
                      lambda: self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle))
        return _up_to(1 << 63, bits, "nvmlDeviceGetCurrentClocksEventReasons")

    def link_active(self, handle: Any, link: int) -> bool:
        """Whether an NVLink is up."""
        return bool(self._call("nvmlDeviceGetNvLinkState", handle, link))

    def mig_enabled(self, handle: Any) -> bool:
        """Whether the card is partitioned."""
        return bool(self._call("nvmlDeviceGetMigMode", handle)[0])

    def mig_slots(self, handle: Any) -> int:
        """How many MIG instances the card can have."""
        slots = self._call("nvmlDeviceGetMaxMigDeviceCount", handle)
        return _up_to(MOST_INSTANCES, slots, "nvmlDeviceGetMaxMigDeviceCount")

    def mig_handle(self, handle: Any, slot: int) -> Any:
        """Handle of a MIG instance; ``not_found`` for an empty slot."""
        return self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)

    def event_set(self) -> Any:
        """A new set of events."""
        return self._call("nvmlEventSetCreate")

    def free_event_set(self, events: Any) -> None:
        """Free a set that nobody waits for any more."""
        self._call("nvmlEventSetFree", events)

    def register_xid(self, handle: Any, events: Any) -> None:
        """Have critical XID errors of a card come to the set from now on."""
        self._call("nvmlDeviceRegisterEvents", handle, self._binding.nvmlEventTypeXidCriticalError, events)

    def wait_xid(self, events: Any, milliseconds: int) -> tuple[int, int]:
        """Wait for the next event: the key of its card's handle and the XID; ``timeout`` when there was none."""
        wait = "nvmlEventSetWait_v2" if hasattr(self._binding, "nvmlEventSetWait_v2") else "nvmlEventSetWait"
        event = self._call(wait, events, milliseconds)
        return handle_key(event.device), int(event.eventData)

    def _call(self, name: str, *args: Any) -> Any:
        function = getattr(self._binding, name, None)
        if function is None:
            raise NvmlError("uninitialized" if self._binding is None else "function_not_found", name)
        try:
            return function(*args)
        except self._binding.NVMLError as error:
            raise NvmlError(self._names.get(error.value, f"code_{error.value}"), name) from None
        except UnicodeDecodeError as error:
            return error.object  # newer bindings decode strings themselves, and strictly


def handle_key(handle: Any) -> int:
    """Return a number that is the same for all handles of one card."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _up_to(most: int, value: int, call: str) -> int:
    """Return a value from 0 on. -1, signed or not, is NVML_VALUE_NOT_AVAILABLE."""
    if value in (-1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF):
        raise NvmlError("not_supported", call)
    if not 0 <= value <= most:
        raise NvmlError(IMPLAUSIBLE, call)
    return int(value)


def _first(newer: Callable[[], _T], older: Callable[[], _T]) -> _T:
    try:
        return newer()
    except NvmlError as error:
        if error.name not in OLDER_DRIVER:
            raise
    return older()
