"""Turn a snapshot and the details beside it into metric families.

At most ``MAX_SERIES`` series a device: 8 readings and their info, 2 kinds of memory errors, 8 error codes, whether and
when it was read, 4 reasons why not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import Metric

from k3observe.exporters import families
from k3observe.exporters.npu.details import Common, Ecc, Fault
from k3observe.exporters.npu.devices import Key, Known, Snapshot
from k3observe.exporters.npu.table import Device

VENDOR = "ascend"
MAX_SERIES = 40
MAX_CELSIUS, MAX_WATTS = 200.0, 100_000.0
_MIB = 1 << 20

HEALTH = {"ok": 1.0, "warning": 0.0, "alarm": 0.0, "critical": 0.0, "offline": 0.0}
"""Health by the last of the tool's words ("General Warning"); UNKNOWN and others say nothing.

Warning is not healthy: npu-exporter says 0 for every health but OK, and a card must not look different by which of the
two is scraped. How bad it is stands in ``k3_accelerator_fault``.
"""


class Details(NamedTuple):
    """What the sub-commands said: of a whole NPU, and of single chips."""

    common: Mapping[int, Common]
    ecc: Mapping[Key, Ecc]
    faults: Mapping[Key, Fault]


NO_DETAILS = Details({}, {}, {})


def render(snapshot: Snapshot, details: Details, expected: int | None) -> Iterable[Metric]:
    """Yield all families of the devices."""
    new = {family: family.new() for family in (
        families.ACCELERATOR_INFO, families.MEMORY_TOTAL, families.MEMORY_USED, families.MEMORY_FREE,
        families.UTILIZATION, families.TEMPERATURE, families.POWER, families.HEALTH, families.FAULT,
        families.ECC_ERRORS, families.READ_SUCCESS, families.LAST_READ, families.READ_ERRORS,
        families.VISIBLE, families.EXPECTED)}

    def add(family: families.Family, labels: tuple[str, ...], value: float | None) -> None:
        if value is not None:
            new[family].add_metric(labels, value)

    for key, known in snapshot.devices.items():
        labels = (VENDOR, str(key), known.uuid)
        add(families.READ_SUCCESS, labels, float(known.row is not None))
        add(families.LAST_READ, labels, known.last_read)
        for error, count in known.errors.items():
            add(families.READ_ERRORS, (*labels, error), count)
        if known.row is None or known.row.memory is None:
            continue
        row, (used, total) = known.row, known.row.memory
        add(families.ACCELERATOR_INFO, (*labels, row.first.name, snapshot.driver, row.second.bus or ""), 1)
        add(families.MEMORY_TOTAL, labels, total * _MIB)
        add(families.MEMORY_USED, labels, used * _MIB)
        add(families.MEMORY_FREE, labels, (total - used) * _MIB)
        add(families.UTILIZATION, labels, _utilization(key, row, details))
        add(families.TEMPERATURE, labels, _believable(row.first.temperature_celsius, MAX_CELSIUS))
        add(families.POWER, labels, _believable(_power(key, row, snapshot.devices, details), MAX_WATTS))
        add(families.HEALTH, labels, health(row))
        if (fault := details.faults.get(key)) and health(row) != 1:
            for code in fault.codes:
                add(families.FAULT, (*labels, code), 1)
        if ecc := details.ecc.get(key):
            add(families.ECC_ERRORS, (*labels, "corrected"), ecc.corrected)
            add(families.ECC_ERRORS, (*labels, "uncorrected"), ecc.uncorrected)
    add(families.VISIBLE, (VENDOR,), snapshot.visible)
    add(families.EXPECTED, (VENDOR,), expected)
    yield from new.values()


def _believable(value: float | None, most: float) -> float | None:
    """The tool prints 0 for a sensor that did not answer; no chip at work has 0 C or draws 0 W."""
    return value if value is not None and 0 < value <= most else None


def health(row: Device) -> float | None:
    """1 healthy, 0 not, None when the tool does not know."""
    return HEALTH.get((row.first.health or "").casefold().rpartition(" ")[2])


def lacks_power(npu: int, devices: Mapping[Key, Known]) -> bool:
    """Whether the table has no power for any chip of an NPU (310P): then only the board's is known."""
    rows = [known.row for key, known in devices.items() if key.npu == npu and known.row is not None]
    return bool(rows) and all(row.first.power_watts is None for row in rows)


def _power(key: Key, row: Device, devices: Mapping[Key, Known], details: Details) -> float | None:
    """Power of the chip; that of a board stands at its first chip, so that sums over devices are right."""
    if row.first.power_watts is not None:
        return row.first.power_watts
    common = details.common.get(key.npu)
    if common is None or not lacks_power(key.npu, devices):
        return None
    first = min(other for other, known in devices.items() if other.npu == key.npu and known.row is not None)
    return common.board_power_watts if key == first else None


def _utilization(key: Key, row: Device, details: Details) -> float | None:
    """Share of time; None for a chip that has no such reading, although the table prints 0."""
    common, percent = details.common.get(key.npu), row.second.utilization_percent
    if percent is None or not 0 <= percent <= 100 or (common is not None and key.chip in common.blind_chips):
        return None
    return percent / 100
