"""The file that one expert-parallel rank publishes: its layout, version 1, and the atomic write.

``docs/plugin-format.md`` describes it for other writers and readers. Standard library only: the engine's process, the
sidecar and simulated engines all use this module. A file is untrusted when it is read: size, checksum, shapes and
every number of the header are checked before anything is computed from them.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

MAGIC = b"K3EXPERT"
VERSION = 1
PREFIX = struct.Struct("<8sIIII")
"""Magic, version, length of the header, length of the body, crc32 of header and body; little endian."""

MAX_BYTES = 64 << 20
MAX_HEADER = 1 << 18
MAX_CELLS = 1 << 20
MAX_LAYERS = 1024
MAX_COLUMNS = 32767
MAX_RANKS = 8192
MAX_MODELS = 4
MAX_REARRANGEMENTS = 8
MAX_NUMBER = 1 << 62
MAX_TEXT = 256

HEARTBEAT_SECONDS = 15.0
"""A writer that has nothing new sets the file's modification time this often: an idle rank is not a dead one."""

INSTANCE = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NAME = re.compile(r"k3experts-([A-Za-z0-9_-]{1,32})-pp(\d{3,4})-ep(\d{5})\.bin")
_WIDTHS = {"h": 2, "i": 4, "q": 8}

Detail = Literal["rank", "expert"]


class FormatError(ValueError):
    """Bytes that are no valid file of version 1; says what is wrong."""


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """A rearrangement of experts by its number in the life of the process, its start (unix time) and duration."""

    number: int
    time: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """What one rank's router sent to each column, layer by layer, over one interval and since the process started.

    A column is a physical expert of the whole group (detail ``expert``) or an expert-parallel rank (``rank``). The
    load of a column is the sum over the files of all ranks. ``steps`` are the steps with real requests and
    ``recorded`` those of them in which the engine counted. ``logical`` is the logical expert of each column during
    the interval, -1 for an empty one; it is ``settled`` unless it changed within the interval, and ``map_number``
    grows by one with every change. ``layers`` are the model's own layer numbers, empty where they are not known.
    """

    model: str
    rows: int
    columns: int
    steps: int
    recorded: int
    total_steps: int
    total_recorded: int
    counts: array[int]
    totals: array[int]
    logical: array[int] | None = None
    settled: bool = True
    map_number: int = 0
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """The content of one file.

    ``instance`` names the engine and is the same for all its ranks, ``run`` names the process. ``cycle`` and ``step``
    are the same on all ranks of a group at the same forward pass: they are what files of one group are matched by.
    ``time`` is the unix time of the interval's end, ``seconds`` its length, ``dropped`` the publications that were
    skipped because the writer was behind: their counts are in the next one.
    """

    engine: str
    engine_version: str
    instance: str
    run: str
    pp_rank: int
    pp_size: int
    ep_rank: int
    ep_size: int
    detail: Detail
    sequence: int
    cycle: int
    step: int
    time: float
    seconds: float
    dropped: int
    rearrangements: tuple[Rearrangement, ...]
    models: tuple[ModelCounts, ...]


def file_name(instance: str, pp_rank: int, ep_rank: int) -> str:
    """Return the name of a rank's file."""
    return f"k3experts-{instance}-pp{pp_rank:03d}-ep{ep_rank:05d}.bin"


def parse_name(name: str) -> tuple[str, int, int] | None:
    """Return instance, pipeline rank and expert-parallel rank of a file's name; None when it is no such name."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2]), int(match[3])) if match else None


def encode(publication: Publication) -> list[bytes]:
    """Return the file as parts to be written one after the other."""
    header: dict[str, Any] = {
        field.name: getattr(publication, field.name)
        for field in fields(publication) if field.name not in ("models", "rearrangements")
    }
    header["rearrangements"] = [asdict(event) for event in publication.rearrangements]
    body: list[bytes] = []
    header["models"] = models = []
    for model in publication.models:
        meta = {
            field.name: getattr(model, field.name)
            for field in fields(model) if field.name not in ("counts", "totals", "logical")
        }
        models.append({**meta, "mapped": model.logical is not None})
        body.append(_bytes(model.counts, "i"))
        body.append(_bytes(model.totals, "q"))
        if model.logical is not None:
            body.append(_bytes(model.logical, "h"))
    head = json.dumps(header, separators=(",", ":")).encode()
    check = zlib.crc32(head)
    for part in body:
        check = zlib.crc32(part, check)
    return [PREFIX.pack(MAGIC, VERSION, len(head), sum(map(len, body)), check), head, *body]


def decode(data: bytes) -> Publication:
    """Return the content of a file. Raises FormatError."""
    if len(data) < PREFIX.size or not data.startswith(MAGIC):
        raise FormatError("not a file of expert counts")
    _, version, head_size, body_size, check = PREFIX.unpack_from(data)
    if version != VERSION:
        raise FormatError(f"version {version}: only {VERSION} is known; install the same k3observe on both sides")
    if head_size > MAX_HEADER or len(data) > MAX_BYTES or len(data) != PREFIX.size + head_size + body_size:
        raise FormatError(f"{len(data)} bytes do not match the lengths {head_size} and {body_size}")
    view = memoryview(data)[PREFIX.size:]
    if zlib.crc32(view) != check:
        raise FormatError("the checksum differs: the file is damaged")
    try:
        header = json.loads(bytes(view[:head_size]))
    except (ValueError, RecursionError):
        raise FormatError("the header is not JSON") from None
    if not isinstance(header, dict):
        raise FormatError("the header is not an object")
    return _publication(header, view[head_size:])


def write(directory: str | os.PathLike[str], publication: Publication) -> Path:
    """Replace the rank's file in ``directory`` and return its path; readers see the old content or the new one.

    The mode is 0644 whatever the umask, no link is followed. Raises OSError.
    """
    name = file_name(publication.instance, publication.pp_rank, publication.ep_rank)
    path, hidden = Path(directory, name), Path(directory, f".{name}.tmp")
    with suppress(FileNotFoundError):
        hidden.unlink()
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(encode(publication))
            os.fchmod(descriptor, 0o644)
        hidden.replace(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    return path


def _bytes(values: array[int], code: str) -> bytes:
    if values.typecode != code:
        values = array(code, values)
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


class _Body:
    """Takes arrays off the front of the body."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def take(self, code: str, cells: int, name: str) -> array[int]:
        size = cells * _WIDTHS[code]
        if len(self._view) < size:
            raise FormatError(f"{name}: {len(self._view)} bytes are left of {size}")
        values: array[int] = array(code)
        values.frombytes(self._view[:size])
        self._view = self._view[size:]
        if sys.byteorder == "big":
            values.byteswap()
        return values

    @property
    def left(self) -> int:
        return len(self._view)


class _Header:
    """Checked access to an object of the header."""

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self._values, self._where = values, where

    def _wrong(self, key: str, wanted: str) -> FormatError:
        return FormatError(f"{self._where}{key}: must be {wanted}, is {str(self._values.get(key))[:40]!r}")

    def integer(self, key: str, low: int = 0, high: int = MAX_NUMBER) -> int:
        value = self._values.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str) -> float:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise self._wrong(key, "a number of seconds")
        return float(value)

    def text(self, key: str, allowed: Callable[[str], object] = str.isprintable) -> str:
        value = self._values.get(key)
        if not isinstance(value, str) or len(value) > MAX_TEXT or (value and not allowed(value)):
            raise self._wrong(key, f"a printable text of at most {MAX_TEXT} characters")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def objects(self, key: str, most: int) -> Iterable[_Header]:
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
            raise self._wrong(key, f"a list of at most {most} objects")
        return [_Header(item, f"{self._where}{key}[{index}].") for index, item in enumerate(value)]

    def layers(self, rows: int) -> tuple[int, ...]:
        value = self._values.get("layers")
        if (not isinstance(value, list) or len(value) not in (0, rows) or len(set(map(str, value))) != len(value)
                or not all(type(item) is int and 0 <= item < 1 << 20 for item in value)):
            raise self._wrong("layers", f"{rows} different layer numbers, or none")
        return tuple(value)

    def get(self, key: str) -> object:
        return self._values.get(key)


def _publication(values: dict[str, Any], view: memoryview) -> Publication:
    header, body = _Header(values), _Body(view)
    detail = header.text("detail")
    if detail not in ("rank", "expert"):
        raise FormatError(f"detail: must be rank or expert, is {detail[:40]!r}")
    ep_size = header.integer("ep_size", 1, MAX_RANKS)
    pp_size = header.integer("pp_size", 1, MAX_RANKS)
    publication = Publication(
        engine=header.text("engine"), engine_version=header.text("engine_version"),
        instance=header.text("instance", INSTANCE.fullmatch), run=header.text("run", INSTANCE.fullmatch),
        pp_rank=header.integer("pp_rank", 0, pp_size - 1), pp_size=pp_size,
        ep_rank=header.integer("ep_rank", 0, ep_size - 1), ep_size=ep_size,
        detail=cast("Detail", detail), sequence=header.integer("sequence", 1), cycle=header.integer("cycle"),
        step=header.integer("step"), time=header.number("time"), seconds=header.number("seconds"),
        dropped=header.integer("dropped"),
        rearrangements=tuple(
            Rearrangement(event.integer("number", 1), event.number("time"),
                          None if event.get("seconds") is None else event.number("seconds"))
            for event in header.objects("rearrangements", MAX_REARRANGEMENTS)),
        models=tuple(_model(meta, body, detail, ep_size) for meta in header.objects("models", MAX_MODELS)),
    )
    if body.left:
        raise FormatError(f"{body.left} bytes are left over")
    return publication


def _model(meta: _Header, body: _Body, detail: str, ep_size: int) -> ModelCounts:
    rows, columns = meta.integer("rows", 1, MAX_LAYERS), meta.integer("columns", 1, MAX_COLUMNS)
    cells = rows * columns
    if cells > MAX_CELLS or columns % ep_size or (detail == "rank" and columns != ep_size):
        raise FormatError(f"{rows} x {columns} counts do not fit {ep_size} ranks with detail {detail}")
    total_steps, total_recorded = meta.integer("total_steps"), meta.integer("total_recorded")
    steps, recorded = meta.integer("steps", 0, total_steps), meta.integer("recorded", 0, total_recorded)
    counts, totals = body.take("i", cells, "counts"), body.take("q", cells, "totals")
    if min(counts) < 0 or min(totals) < 0 or max(totals) > MAX_NUMBER:
        raise FormatError("a count is negative or beyond 2^62")
    logical = body.take("h", cells, "map") if meta.flag("mapped") else None
    if logical is not None and (min(logical) < -1 or max(logical) >= columns):
        raise FormatError(f"the map names experts outside 0 to {columns - 1}")
    return ModelCounts(
        model=meta.text("model"), rows=rows, columns=columns, steps=steps, recorded=recorded,
        total_steps=total_steps, total_recorded=total_recorded, counts=counts, totals=totals, logical=logical,
        settled=meta.flag("settled"), map_number=meta.integer("map_number"), layers=meta.layers(rows))
