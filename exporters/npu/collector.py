"""The collector ``npu``: one thread reads ``npu-smi``, a scrape renders the newest snapshot and never waits for it."""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import Metric

from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.flags import bounded, checked, duration
from k3observe.exporters.npu import dcmi, details, devices, exposition, runner, schedule, table
from k3observe.exporters.npu.devices import Key, Snapshot

DCMI, STATUS, NO_TABLE, UNSUPPORTED = "dcmi", "exit_status", "no_table", "unsupported"
DROPPED, DETAILS, INTERNAL = "dropped_rows", "details", "internal"
REASONS = (
    DCMI, DETAILS, DROPPED, runner.FLOOD, runner.HUNG, INTERNAL, NO_TABLE, runner.NOT_EXECUTABLE, runner.NOT_FOUND,
    STATUS, runner.TIMEOUT, UNSUPPORTED)

ROUND_SECONDS = 8.0
"""After this, sub-commands wait for the next round: the first one must not keep ``--once`` and readiness waiting."""

Value = TypeVar("Value")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the collector."""
    add = parser.add_argument_group("npu").add_argument
    add("--npu.smi-path", dest="npu_smi_path", type=_program, default="npu-smi", metavar="PATH",
        help="Absolute path of npu-smi, or a name on PATH.")
    add("--npu.interval", dest="npu_interval", type=duration(0.1, 3600), default=15.0, metavar="DURATION",
        help="Time between two calls of npu-smi.")
    add("--npu.timeout", dest="npu_timeout", type=duration(0.1, 600), default=10.0, metavar="DURATION",
        help="Time after which a call is killed.")
    add("--npu.devices", dest="npu_devices", type=checked(devices.parse_wanted), metavar="ID[,ID]",
        help="Devices to answer for: NPU ids (0), chips (0-1) or bus ids; without it all that npu-smi lists.")
    add("--npu.expected", dest="npu_expected", type=bounded(int, 0, table.MAX_DEVICES), metavar="NUMBER",
        help="Devices (of an A3: dies) that should be there.")


def from_args(args: argparse.Namespace, log: logging.Logger) -> NpuCollector:
    """Return the collector that the flags ask for."""
    tool = runner.NpuSmi(args.npu_smi_path, args.npu_timeout)
    return NpuCollector(tool, log, args.npu_interval, args.npu_devices or (), args.npu_expected)


class NpuCollector:
    """Reads the table every ``interval`` seconds, and what it lacks in the time between two tables."""

    name = "npu"

    def __init__(
        self, tool: runner.NpuSmi, log: logging.Logger, interval: float,
        wanted: Collection[str] = (), expected: int | None = None,
    ) -> None:
        self._tool, self._log, self._interval = tool, log, interval
        self._wanted, self._expected = wanted, expected
        self._status = SourceStatus(self.name, "npu-smi", REASONS)
        self._stopped, self._first_round = threading.Event(), threading.Event()
        self._newest: tuple[float, Snapshot, exposition.Details] = (0.0, devices.EMPTY, exposition.NO_DETAILS)
        self._tried: dict[schedule.Call, schedule.Tried] = {}
        self._complaint: str | None = None
        # The thread itself may be stuck (a program on a file system that hangs): values never outlive this.
        self._max_age = interval + 2 * tool.timeout + 2

    def start(self) -> None:
        """Start the reading thread."""
        threading.Thread(target=self._run, name="npu-smi", daemon=True).start()

    def stop(self) -> None:
        """End the thread and the call that it waits for."""
        self._stopped.set()
        self._tool.stop()

    def ready(self) -> bool:
        """Whether the first table and what it lacks, or the first failure, is in."""
        return self._first_round.is_set()

    def collect(self) -> Iterable[Metric]:
        """Yield the families of the devices and of the source."""
        read_at, snapshot, more = self._newest
        if time.monotonic() > read_at + self._max_age:
            snapshot = devices.without_values(snapshot)
        yield from exposition.render(snapshot, more, self._expected)
        yield from source_families((self._status,))

    def _run(self) -> None:
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._round(started)
            except Exception:  # the thread must live on
                self._newest = (started, devices.after_failure(self._newest[1], INTERNAL), exposition.NO_DETAILS)
                self._status.failed(INTERNAL)
                self._log.exception("a reading of the NPUs failed")
            self._first_round.set()
            self._stopped.wait(max(0.0, started + self._interval - time.monotonic()))

    def _round(self, started: float) -> None:
        self._read_table(started)
        for call in schedule.due(self._newest[1], self._tried, time.monotonic()):
            if not self._read_details(call) or time.monotonic() >= started + min(self._interval, ROUND_SECONDS):
                break

    def _read_table(self, started: float) -> None:
        _, before, more = self._newest
        try:
            output = self._tool.run("info")
            read = table.parse(output.stdout)
            if not read.devices and not (read.headed and output.status == 0 and not read.dropped):
                raise _failure(output)
            # A tool that was killed while it printed says nothing of the rest; one that crashed after it said all.
            if output.status < 0 and devices.lost(before, read):
                raise _failure(output)
        except runner.RunError as error:
            if error.reason == runner.STOPPED:
                return
            after = devices.after_failure(before, error.reason)
            self._newest = (time.monotonic(), after, exposition.NO_DETAILS)
            self._tried.clear()
            self._status.failed(error.reason, time.monotonic() - started)
            self._complain(str(error))
            return
        after = devices.after_table(before, read, self._wanted, time.time())
        self._report(before, after)
        self._newest = (time.monotonic(), after, more)
        if read.dropped:
            self._status.failed(DROPPED, down=False)
        if output.status:
            self._status.failed(STATUS, down=False)
        self._status.succeeded(time.monotonic() - started)
        self._complain(None)

    def _read_details(self, call: schedule.Call) -> bool:
        """Make one call of a sub-command; return whether the tool can be called again."""
        read_at, snapshot, more = self._newest
        output, rest = "", schedule.RETRY_SECONDS
        try:
            result = self._tool.run(*call.args)
            if result.status:
                raise _failure(result)
            output, rest = result.stdout, schedule.rest_after(call, snapshot)
        except runner.RunError as error:
            if error.reason in (runner.STOPPED, runner.HUNG):
                return False
            if error.reason == UNSUPPORTED:
                rest = schedule.UNSUPPORTED_SECONDS
            else:
                self._status.failed(DETAILS, down=False)
                self._log.warning("npu-smi %s: %s", " ".join(call.args), error)
        # A failed call leaves nothing: its last result may no longer be true.
        self._newest = (read_at, snapshot, self._with(more, call, snapshot, output))
        self._tried[call] = schedule.Tried(time.monotonic(), rest)
        return True

    def _with(
        self, more: exposition.Details, call: schedule.Call, snapshot: Snapshot, output: str
    ) -> exposition.Details:
        keys = schedule.keys_of(call, snapshot)
        if call.kind == "common":
            return more._replace(common={**more.common, call.npu: details.common(output)})
        if call.kind == "ecc":
            counts = details.ecc(output)
            return more._replace(ecc=_replaced(more.ecc, keys, lambda key: counts.get(key.chip)))
        fault = details.fault(output)
        for key in keys:
            if fault and fault != more.faults.get(key):
                self._log.warning("NPU %s reports %s: %s", key, " ".join(fault.codes), fault.information)
        return more._replace(faults=_replaced(more.faults, keys, lambda key: fault))

    def _report(self, before: Snapshot, after: Snapshot) -> None:
        """Log what changed for a device, once."""
        for key, known in after.devices.items():
            was = before.devices.get(key)
            if known.row is None and (was is None or was.row is not None):
                self._log.warning("NPU %s (bus %s) cannot be read: %s", key, known.uuid or "unknown", known.error)
            elif known.row is not None and was is not None and was.row is None:
                self._log.info("NPU %s can be read again", key)

    def _complain(self, complaint: str | None) -> None:
        """Log a failure of the tool when it begins or changes, and its end."""
        if complaint and complaint != self._complaint:
            self._log.error("no readings of NPUs: %s", complaint)
        elif self._complaint and not complaint:
            self._log.info("npu-smi answers again")
        self._complaint = complaint


def _failure(output: runner.Output) -> runner.RunError:
    """Say why a call without a usable answer failed, and what helps."""
    if "not support" in output.stdout:
        return runner.RunError(UNSUPPORTED, _said(output))
    if code := dcmi.code_of(output.status, output.stdout):
        reason = UNSUPPORTED if code.number in dcmi.UNSUPPORTED else DCMI
        return runner.RunError(reason, f"npu-smi: DCMI error {code.number} ({code.meaning}): {code.help}")
    if output.status:
        how = f"signal {-output.status}" if output.status < 0 else f"exit status {output.status}"
        hint = ": add the driver's lib64 folders to LD_LIBRARY_PATH" if "shared librar" in output.stderr else ""
        return runner.RunError(STATUS, f"npu-smi ended with {how}: {_said(output)}{hint}")
    return runner.RunError(NO_TABLE, f"npu-smi printed no table of devices: {_said(output)}")


def _said(output: runner.Output) -> str:
    words = f"{output.stderr.strip()} {output.stdout.strip()}".split()
    return " ".join(words)[:300] or "it printed nothing"


def _replaced(
    old: Mapping[Key, Value], keys: Collection[Key], new: Callable[[Key], Value | None]
) -> dict[Key, Value]:
    """Return ``old`` with the values of ``keys`` replaced, and those that there are not left out."""
    values = {key: value for key, value in old.items() if key not in keys}
    return values | {key: value for key in keys if (value := new(key)) is not None}


def _program(text: str) -> str:
    if not text or ("/" in text and not os.path.isabs(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: write an absolute path, or a name without / to look up on PATH")
    return text
