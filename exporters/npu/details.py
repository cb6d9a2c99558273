"""Parse ``npu-smi info -t ...``: lines of ``key : value`` in blocks, one block a chip, one for the board (``mcu``).

Blocks are separated by blank lines; the line that names a block (Chip ID, Chip Name) is its first in ``common`` and its
last in ``power``, ``temp`` and ``ecc``. A 950 prints one block without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from k3observe.exporters.npu.table import lines

MAX_CODES = 8

_POWER = ("NPU Real-time Power(W)", "Power Dissipation(W)")
_CORRECTED = ("HBM Single Bit Error Count", "DDR Single Bit Error Count")
_UNCORRECTED = ("HBM Double Bit Error Count", "DDR Double Bit Error Count")
_BUSY_SHARE = ("aicore", "npuutil")
"""Beginnings of "Aicore Usage Rate(%)" and "NPU Utilization(%)"; a build that writes them otherwise has them still."""
_CODE = re.compile(r"\b(?:0x|(?=[0-9A-Fa-f]{8}))([0-9A-Fa-f]{1,16})\b")
_COUNT = re.compile(r"[0-9]{1,18}")
_NOT_AVAILABLE = 0xFFFF_FFFF
_DECIMAL = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")

Block = Mapping[str, str]


class Common(NamedTuple):
    """``-t common`` of one NPU."""

    board_power_watts: float | None
    """Power of the whole card, which 310 parts give for the board only."""
    blind_chips: frozenset[int]
    """Chips without a utilization: compute-split vNPUs, for which the table prints 0."""


class Ecc(NamedTuple):
    """Memory errors of a chip since the driver was loaded, HBM and DDR together; None where neither was read."""

    corrected: int | None
    uncorrected: int | None


class Fault(NamedTuple):
    """Why a chip is not OK: its error codes in hexadecimal and what the tool says about them."""

    codes: tuple[str, ...]
    information: str


def blocks(text: str) -> tuple[Block, ...]:
    """Split ``text`` into blocks; a line whose key is blank goes on with the value before it."""
    found: list[dict[str, str]] = []
    block: dict[str, str] = {}
    last = None
    for line in lines(text):
        key, colon, value = (part.strip(" \t>") for part in line.partition(":"))
        if not line.strip(" \t>"):
            block, last = {}, None
        elif colon and not key and last is not None:
            block[last] = f"{block[last]}; {value}"[:1000]
        elif colon and key:
            if key in block or not block:
                block = {}
                found.append(block)
            block[key], last = value[:1000], key
    return tuple(found)


def common(text: str) -> Common:
    """Read ``-t common``."""
    power, blind = None, set()
    for block in blocks(text):
        if block.get("Chip Name", "").casefold() == "mcu":
            power = _first_number(block, _POWER)
        elif "Temperature(C)" in block and not any(map(_is_busy_share, block)):
            blind.add(_chip(block))
    return Common(power, frozenset(blind))


def ecc(text: str) -> Mapping[int, Ecc]:
    """Read ``-t ecc``: errors by chip; a chip of which no count was read is left out."""
    counts = {_chip(block): Ecc(_sum(block, _CORRECTED), _sum(block, _UNCORRECTED)) for block in blocks(text)}
    return {chip: counted for chip, counted in counts.items() if counted != (None, None)}


def fault(text: str) -> Fault | None:
    """Read ``-t health`` of one chip; None when it names no code."""
    for block in blocks(text):
        codes = [f"0x{code.upper()}" for code in _CODE.findall(block.get("Error Code", ""))]
        if codes:
            return Fault(tuple(dict.fromkeys(codes))[:MAX_CODES], block.get("Error Information", ""))
    return None


def _is_busy_share(key: str) -> bool:
    return key.replace(" ", "").casefold().startswith(_BUSY_SHARE)


def _chip(block: Block) -> int:
    word = block.get("Chip ID", "0")
    return int(word) if _COUNT.fullmatch(word) else 0


def _sum(block: Block, keys: Iterable[str]) -> int | None:
    counts = [int(block[key]) for key in keys if _COUNT.fullmatch(block.get(key, ""))]
    known = [count for count in counts if count != _NOT_AVAILABLE]
    return sum(known) if known else None


def _first_number(block: Block, keys: Iterable[str]) -> float | None:
    return next((float(block[key]) for key in keys if _DECIMAL.fullmatch(block.get(key, ""))), None)
