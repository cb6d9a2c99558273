"""The collector ``gpu``: NVIDIA GPUs of this machine or container through NVML."""

from __future__ import annotations

import argparse
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client.core import Metric

from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.flags import bounded, checked, duration
from k3observe.exporters.gpu.exposition import device_families
from k3observe.exporters.gpu.lane import Gate, Lane
from k3observe.exporters.gpu.ledger import LOST, Ledger
from k3observe.exporters.gpu.nvml import MOST_DEVICES, Nvml, NvmlError
from k3observe.exporters.gpu.reading import DEADLINE, CardError, Reader
from k3observe.exporters.gpu.sample import CardReading
from k3observe.exporters.gpu.session import BROKEN, Session
from k3observe.exporters.gpu.xid import XidWatch

REASONS = (DEADLINE, "library_not_found", "driver_not_loaded", "lib_rm_version_mismatch", "unknown", "uninitialized",
           "xid_wait", "internal")
HELP = {
    "binding_missing": "the Python package nvidia-ml-py is missing: pip install nvidia-ml-py",
    "library_not_found": "no libnvidia-ml.so.1: no driver here, or a container without the NVIDIA runtime",
    "driver_not_loaded": "the NVIDIA kernel driver is not loaded",
    "lib_rm_version_mismatch": "the driver was replaced under the running exporter: restart it (its container)",
    "no_permission": "may not talk to the driver: check the device cgroup and /dev/nvidia*",
    "unknown": "the driver answers nothing useful; in a container its devices may have been taken away: restart it",
    DEADLINE: "the driver does not answer",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--gpu.*``."""
    add = parser.add_argument_group("gpu").add_argument
    add("--gpu.devices", dest="gpu_devices", type=checked(_uuids), metavar="UUID,...",
        help="UUIDs of the GPUs or MIG instances this process answers for, as nvidia-smi -L prints them; all if unset.")
    add("--gpu.expected", dest="gpu_expected", type=bounded(int, 0, MOST_DEVICES), metavar="N",
        help="How many GPUs should be there; the number of --gpu.devices if unset.")
    add("--gpu.interval", dest="gpu_interval", type=duration(0.05, 3600), default=5.0, metavar="DURATION",
        help="Pause between two readings of a GPU.")
    add("--gpu.timeout", dest="gpu_timeout", type=duration(0.05, 600), default=5.0, metavar="DURATION",
        help="How long a reading may take before the GPU counts as not answering.")
    add("--gpu.links", dest="gpu_links", action="store_true",
        help="A series for each NVLink instead of one for all of a GPU.")


def from_args(args: argparse.Namespace, log: logging.Logger) -> GpuCollector:
    """Build the collector from parsed flags."""
    return GpuCollector(
        log, devices=args.gpu_devices, expected=args.gpu_expected, interval=args.gpu_interval,
        timeout=args.gpu_timeout, each_link=args.gpu_links)


class GpuCollector:
    """One thread a card, one for the driver, one for XID events and one that watches their deadlines.

    At most 40 series a device, without ``each_link``; the tests count them.
    """

    name = "gpu"

    def __init__(
        self, log: logging.Logger, *, devices: tuple[str, ...] | None = None, expected: int | None = None,
        interval: float = 5.0, timeout: float = 5.0, each_link: bool = False,
    ) -> None:
        self._log, self._interval, self._timeout, self._each_link = log, interval, timeout, each_link
        self._expected = len(devices) if expected is None and devices else expected
        self._nvml, self._gate = Nvml(), Gate()
        self._ledger, self._reader = Ledger(devices), Reader(self._nvml, devices)
        self._status = SourceStatus(self.name, "nvml", REASONS)
        self._xids = XidWatch(self._nvml, self._gate, interval, self._ledger.watching, self._heard, self._xid_failed)
        self._session = Session(self._nvml, self._gate, interval, self._xids.attached)
        self._lanes: list[Lane] = [
            Lane("gpu-driver", self._ask_driver, lambda: self._driver_failed(DEADLINE), interval, timeout)]
        self._stop = threading.Event()
        self._problem: str | None = None
        self._count: int | None = None
        self._v1_told = threading.Lock()  # taken, once, by the first card that finds it out

    def start(self) -> None:
        """Start the threads."""
        _share_memory_of_threads()
        self._lanes[0].start()
        self._xids.start()
        threading.Thread(target=self._watch_deadlines, name="gpu-deadlines", daemon=True).start()

    def stop(self) -> None:
        """Ask the threads to end; one whose call hangs ends with the process."""
        self._stop.set()
        self._xids.stop()
        for lane in self._lanes:
            lane.stop()

    def ready(self) -> bool:
        """Whether the driver and every card answered or failed once."""
        return self._status.tried and (self._problem is not None or self._ledger.view().settled)

    def collect(self) -> Iterable[Metric]:
        """Yield what is known now."""
        yield from device_families(self._ledger.view(), self._expected, self._each_link)
        yield from source_families([self._status])

    def _watch_deadlines(self) -> None:
        while not self._stop.wait(min(self._timeout / 4, 0.5)):
            for lane in list(self._lanes):
                lane.check()

    # The driver's thread.

    def _ask_driver(self, overdue: Callable[[], bool]) -> Callable[[], None]:
        del overdue  # there is nothing to give up between its few calls
        started = time.monotonic()
        try:
            listing = self._session.check()
        except NvmlError as error:
            return partial(self._driver_failed, error.name)
        except Exception:
            self._log.exception("reading the driver failed")
            return partial(self._driver_failed, "internal")
        if listing is None:
            return lambda: None
        return partial(self._listed, listing.count, listing.driver, time.monotonic() - started)

    def _listed(self, count: int, driver: str, seconds: float) -> None:
        if self._problem is not None or count != self._count:
            level = logging.WARNING if self._count is not None and count < self._count else logging.INFO
            before = "" if self._count in (None, count) else f", {self._count} before"
            self._log.log(level, "driver %s lists %d GPUs%s", driver, count, before)
        self._problem, self._count = None, count
        self._ledger.listed(count, driver)
        self._status.succeeded(seconds)
        while len(self._lanes) <= count:
            index = len(self._lanes) - 1
            lane = Lane(f"gpu-{index}", partial(self._ask_card, index), partial(self._card_failed, index, DEADLINE),
                        self._interval, self._timeout, self._gate)
            try:
                lane.start()
            except RuntimeError as error:  # out of threads: tried again with the next listing
                self._status.failed("internal", down=False)
                self._log.error("cannot read GPU %d: %s", index, error)
                return
            self._lanes.append(lane)

    def _driver_failed(self, error: str) -> None:
        self._status.failed(error)
        if error != DEADLINE:
            self._ledger.detached()
        if error != self._problem:
            self._log.error("cannot read GPUs: %s: %s; trying again", error, HELP.get(error, "the driver's own error"))
        self._problem = error

    # A card's thread.

    def _ask_card(self, index: int, overdue: Callable[[], bool]) -> Callable[[], None]:
        if not self._ledger.lists(index):
            return lambda: None
        try:
            reading = self._reader.read(index, overdue, self._xids.watch)
        except CardError as error:
            return partial(self._card_failed, index, error.name, error.uuid)
        except Exception:
            self._log.exception("reading GPU %d failed", index)
            return partial(self._card_failed, index, "internal")
        return partial(self._card_read, index, reading)

    def _card_read(self, index: int, reading: CardReading) -> None:
        before = self._ledger.read(index, reading, time.time())
        failed = [f"{sample.identity.device}: {', '.join(sample.errors)}"
                  for sample in reading.samples if sample.errors]
        if not failed:
            self._session.works()
        if before in ("hung", "lost", "failed") and not failed:
            self._log.info("%s answers again", self._ledger.label(index))
        elif failed and before != "failed":
            self._log.warning("%s: some values cannot be read: %s", self._ledger.label(index), "; ".join(failed))
        older = any(sample.memory and sample.memory.reserved is None for sample in reading.samples)
        if older and self._v1_told.acquire(blocking=False):
            self._log.warning("the driver is older than R510: used memory includes what the driver reserves")

    def _card_failed(self, index: int, error: str, uuid: str | None = None) -> None:
        before = self._ledger.failed(index, error, uuid)
        after = "hung" if error == DEADLINE else "lost" if error in LOST else "failed"
        if before is not None and before != after:
            self._log.error("%s %s: %s", self._ledger.label(index), _WHAT_HAPPENED[after], error)
        if error in BROKEN - {"unknown"} or (error == "unknown" and self._ledger.all_lost()):
            self._session.request_attach()

    def _heard(self, uuid: str, xid: int) -> None:
        self._ledger.heard(uuid, xid)
        self._log.error("GPU %s: XID %d", uuid, xid)

    def _xid_failed(self, error: str, news: bool) -> None:
        self._status.failed("xid_wait", down=False)
        if news:
            self._log.warning("cannot listen to XID events: %s; trying again", error)


_M_ARENA_MAX = -8  # <malloc.h>
_WHAT_HAPPENED = {"hung": "does not answer", "lost": "is lost", "failed": "cannot be read"}


def _share_memory_of_threads() -> None:
    """Keep glibc from giving each thread, so each card, a heap of its own; other C libraries do not."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _uuids(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not name.startswith(("GPU-", "MIG-")):
            raise ValueError(f"{name!r} is no UUID of a GPU or MIG instance: see nvidia-smi -L")
    if not names:
        raise ValueError("names no device: leave the flag out for all of them")
    return names
