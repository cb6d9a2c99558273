"""The metric families of the devices, from one view of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from k3observe.exporters import families
from k3observe.exporters.families import Family
from k3observe.exporters.gpu.ledger import DeviceView, View
from k3observe.exporters.gpu.sample import Sample

VENDOR = "nvidia"

_Rows = Iterator[tuple[Family, tuple[str, ...], float | None]]


def device_families(view: View, expected: int | None, each_link: bool) -> Iterable[Metric]:
    """Return the families that have samples. ``each_link`` makes a series of each NVLink instead of ``link="all"``."""
    metrics: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def add(family: Family, labels: tuple[str, ...], value: float | None) -> None:
        if value is not None:
            if family.name not in metrics:
                metrics[family.name] = family.new()
            metrics[family.name].add_metric((VENDOR, *labels), value)

    for device in view.devices:
        for family, more, value in _rows(device, view.driver, each_link):
            add(family, (device.identity.device, device.identity.uuid, *more), value)
    add(families.VISIBLE, (), view.visible)
    add(families.EXPECTED, (), expected)
    return metrics.values()


def _rows(device: DeviceView, driver: str, each_link: bool) -> _Rows:
    yield families.READ_SUCCESS, (), float(device.success)
    yield families.LAST_READ, (), device.last_read
    for error, count in device.errors:
        yield families.READ_ERRORS, (error,), count
    for xid, count in device.xids:
        yield families.XID_ERRORS, (xid,), count
    yield families.HEALTH, (), _number(device.healthy)
    if device.sample is not None:
        identity = device.identity
        yield families.ACCELERATOR_INFO, (identity.product, driver, identity.bus), 1
        yield from _values(device.sample, each_link)


def _values(sample: Sample, each_link: bool) -> _Rows:
    if sample.memory is not None:
        yield families.MEMORY_TOTAL, (), sample.memory.total
        yield families.MEMORY_USED, (), sample.memory.used
        yield families.MEMORY_RESERVED, (), sample.memory.reserved
        yield families.MEMORY_FREE, (), sample.memory.free
    yield families.UTILIZATION, (), sample.utilization
    yield families.TEMPERATURE, (), sample.temperature
    yield families.POWER, (), sample.power
    yield families.POWER_LIMIT, (), sample.power_limit
    yield families.ROW_REMAP_FAILURE, (), _number(sample.row_remap_failure)
    for kind, count in sample.ecc_errors:
        yield families.ECC_ERRORS, (kind,), count
    for reason, held in sample.throttled:
        yield families.THROTTLED, (reason,), float(held)
    if each_link:
        for link, up in enumerate(sample.links):
            yield families.LINK_UP, (str(link),), float(up)
    elif sample.links:
        yield families.LINK_UP, ("all",), float(all(sample.links))


def _number(value: bool | None) -> float | None:
    return None if value is None else float(value)
