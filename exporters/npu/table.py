"""Parse the table that ``npu-smi info`` prints, from driver 21 to 26 and from 310 to A3 and 950.

Every device takes two rows: identity, health, power and temperature in the first; chip, bus, utilization and memory in
the second. Rows are split at ``|``: columns move between builds and shift when numbers grow. What a row is follows
from its own cells, so tables without a head, cut or mixed with log lines still give their whole rows.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_DEVICES = 256
MAX_MEGABYTES = 1 << 26
MAX_ROW = 4096

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LINE_END = re.compile(r"\r\n|\n|\r")
_BORDER = re.compile(r"\+[-=+]{8,}")
_VERSION = re.compile(r"npu-smi\s+(\S{1,64})\s+Version:\s*(\S{1,64})")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_NO_BUS = re.compile(r"[0:.]+")
_AMOUNT = r"-?[0-9]{1,20}(?:\.[0-9]{1,6})?|NA|-"
_READING = re.compile(rf"(?P<used>{_AMOUNT})\s*/\s*(?P<total>{_AMOUNT})(?![^\s])|(?P<plain>\S+)")
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,9})?")
_ID = re.compile(r"[0-9]{1,9}")
_HEALTH = re.compile(r"[^\W\d_][\w .()-]{0,30}")
_PROCESSES = re.compile(r"Process id|No running processes")
_NONE = ("NA", "N/A", "-", "--")
_HEAD = re.compile(r"Bus-Id|Health|npu-smi")

Megabytes = tuple[int, int]
"""Used and total; the tool writes MB and means MiB. A total of 0 was not read."""


class FirstRow(NamedTuple):
    """The upper row of a device; a value the tool does not have (``-``, ``NA``) is None."""

    npu: int
    name: str
    health: str | None
    power_watts: float | None
    temperature_celsius: float | None


class SecondRow(NamedTuple):
    """The lower row of a device; ``physical`` is the column Phy-ID or Device, ``hbm`` is missing on 310 parts.

    A 950 has no chip ids: ``chip`` is 0 then and ``has_chip_id`` False.
    """

    chip: int
    physical: int | None
    bus: str | None
    utilization_percent: float | None
    ddr: Megabytes
    hbm: Megabytes | None
    has_chip_id: bool


class Device(NamedTuple):
    """A chip (of an A3: a die) with both rows."""

    first: FirstRow
    second: SecondRow

    @property
    def memory(self) -> Megabytes | None:
        """The memory that models live in: HBM, or on 310 parts DDR; None when it was not read.

        The tool clears its structure before it asks the chip, so a total of 0 means that the chip did not answer;
        the health beside it then says OK only because 0 is the index of that word.
        """
        used_total = self.second.ddr if self.second.hbm is None else self.second.hbm
        return used_total if used_total[1] > 0 else None

    @property
    def answers(self) -> bool:
        """Whether the chip answered any call: a dead one prints zeros everywhere."""
        return self.memory is not None or bool(self.first.temperature_celsius) or self.second.bus is not None


class Table(NamedTuple):
    """What one call printed."""

    tool: str | None
    driver: str | None
    devices: tuple[Device, ...]
    incomplete: tuple[FirstRow | SecondRow, ...]
    """Rows whose other half is missing: cut, or left out by the tool (an unknown health index drops the first)."""
    dropped: int
    """Rows that are cut, not closed by ``|`` or that no layout explains."""
    headed: bool
    """Whether the head of the table was seen: without it no devices may mean that nothing was printed."""


def lines(text: str) -> list[str]:
    """Split at LF, CRLF and CR, without colours and other control characters."""
    return _LINE_END.split(_CONTROL.sub("", text))


def parse(text: str) -> Table:
    """Return what ``text`` holds; anything that is not a whole row is left out, never guessed."""
    tool = driver = None
    headed = among_processes = False
    devices: list[Device] = []
    halves: list[FirstRow | SecondRow] = []
    dropped = 0
    pending: FirstRow | None = None
    for line in lines(text):
        start = line.find("|")
        border = _BORDER.search(line)
        if start < 0 and not border:
            continue
        row = None
        if start >= 0 and not (border and border.start() < start):
            body = line[start:].rstrip()
            begins_with_id = _begins_with_id(body)
            if not begins_with_id and (_PROCESSES.search(body) or _HEAD.search(body)):
                among_processes = _PROCESSES.search(body) is not None and body.endswith("|")
                headed = headed or not among_processes
                version = _VERSION.search(body)
                if version and tool is None:
                    tool, driver = version.groups()
            elif not among_processes:  # a process names itself, if it likes as a row of a device
                row = _row(body)
                if row is None and begins_with_id and not line[:start].strip(" \t>"):
                    dropped += not _is_process(body)
        if isinstance(row, SecondRow) and pending is not None:
            if len(devices) < MAX_DEVICES and pending.name.casefold() != "mcu":
                devices.append(Device(pending, row))
            pending = None
            continue
        if pending is not None:
            halves.append(pending)
            pending = None
        if isinstance(row, FirstRow):
            pending = row
        elif isinstance(row, SecondRow):
            halves.append(row)
    if pending is not None:
        halves.append(pending)
    return Table(tool, driver, tuple(devices), tuple(halves[:MAX_DEVICES]), dropped, headed)


def _row(body: str) -> FirstRow | SecondRow | None:
    """Return the row that ``body``, from its first ``|`` on, is; None when it is none or not closed."""
    if not body.endswith("|") or len(body) > MAX_ROW:
        return None
    cells = [cell.strip() for cell in body[1:-1].split("|")]
    return _cells(cells) or _cells(cells[:-1])  # a build may have a column more at the end


def _cells(cells: list[str]) -> FirstRow | SecondRow | None:
    if len(cells) < 3:
        return None
    readings = list(_READING.finditer(cells[-1]))
    words = [match["plain"] for match in readings if match["plain"]]
    identity, middle = " ".join(cells[:-2]).split(), cells[-2]
    has_bus = _BUS.fullmatch(middle) is not None
    if not has_bus and len(words) >= 2 and len(readings) <= len(words) + 1:
        return _first(identity, middle, words)
    if words and (has_bus or len(words) == 1):
        # Memory that was not read may be one word: DDR must not take the place of HBM.
        memory = [_pair(match) for match in readings[1:] if match["plain"] is None or match["plain"] in _NONE]
        return _second(identity, middle if has_bus else None, words[0], memory) if 1 <= len(memory) <= 2 else None
    return None


def _first(identity: list[str], health: str, words: list[str]) -> FirstRow | None:
    if len(identity) < 2 or not _ID.fullmatch(identity[0]) or not (_HEALTH.fullmatch(health) or health in _NONE):
        return None
    if any(value not in _NONE and not _NUMBER.fullmatch(value) for value in words[:2]):
        return None
    word = None if health in _NONE else health
    return FirstRow(int(identity[0]), " ".join(identity[1:])[:64], word, _number(words[0]), _number(words[1]))


def _second(
    identity: list[str], bus: str | None, utilization: str, memory: list[Megabytes]
) -> SecondRow | None:
    ids = [int(word) for word in identity if _ID.fullmatch(word)]
    if len(ids) > 2 or any(word not in _NONE and not _ID.fullmatch(word) for word in identity):
        return None
    return SecondRow(
        chip=ids[0] if ids else 0,
        physical=ids[1] if len(ids) > 1 else None,
        bus=bus.upper() if bus and not _NO_BUS.fullmatch(bus) else None,
        utilization_percent=_number(utilization),
        ddr=memory[0],
        hbm=memory[1] if len(memory) > 1 else None,
        has_chip_id=bool(ids),
    )


def _pair(match: re.Match[str]) -> Megabytes:
    """Return used and total; what cannot be true has the total 0 of memory that was not read."""
    used, total = match["used"] or "", match["total"] or ""
    if not (used.isdigit() and total.isdigit()) or not int(used) <= int(total) <= MAX_MEGABYTES:
        return 0, 0
    return int(used), int(total)


def _number(word: str) -> float | None:
    return float(word) if _NUMBER.fullmatch(word) else None


def _begins_with_id(body: str) -> bool:
    """Whether a row belongs to the table at all: a log line may hold ``|`` too."""
    return _ID.match(body.strip("| ")) is not None


def _is_process(body: str) -> bool:
    """Whether this is a row of a process table whose head is missing: ids, process id, name, megabytes."""
    cells = [cell.strip() for cell in body.strip("|").split("|")]
    return len(cells) >= 4 and _ID.fullmatch(cells[1]) is not None
