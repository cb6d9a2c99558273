"""The JSON of expert counts: what ``file`` and ``http`` read, and what sidecars tell each other.

``docs/experts-counts.md`` describes it for those who write it. The text is untrusted: size, shape and every number
are bounded before anything is computed from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from k3observe.exporters.experts.loads import ExpertLoads, Phase, Scope

VERSION = 1
MAX_BYTES = 16 << 20
MAX_LAYERS = 1024
MAX_RANKS = 1024
MAX_EXPERTS = 16384
MAX_CELLS = 1 << 20
MAX_ENTRIES = 16
MAX_ITEMS = 2 * MAX_CELLS
"""Of the whole text, counted before it is parsed: objects of Python take many times its size."""
MAX_COUNT = 1 << 48
MAX_TEXT = 256

Kind = Literal["window", "cumulative"]


class CountsError(ValueError):
    """Text that is no JSON of expert counts; says which field is wrong and what it should be."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of counts: ``instance`` tells writers apart, ``ranks`` is set where experts lie in blocks on ranks."""

    instance: str
    kind: Kind
    time: float | None
    loads: tuple[ExpertLoads, ...]
    placed_on: tuple[int | None, ...]
    """For each of ``loads`` of scope ``expert``: the number of ranks its columns are divided into, if told."""


def parse(text: bytes, *, now: float, model: str = "") -> Document:
    """Return the document; ``now`` is its time and ``model`` its model where it tells none. Raises CountsError."""
    if len(text) > MAX_BYTES:
        raise CountsError(f"{len(text)} bytes: at most {MAX_BYTES} are read")
    if text.count(b",") > MAX_ITEMS or text.count(b"[") + text.count(b"{") > MAX_ENTRIES * (MAX_LAYERS + 4):
        raise CountsError(f"too many values: at most {MAX_ITEMS} in {MAX_ENTRIES} x {MAX_LAYERS} lists are read")
    try:
        root = json.loads(text)
    except RecursionError:
        raise CountsError("nested too deeply") from None
    except ValueError as error:
        raise CountsError(f"not JSON: {error}") from None
    if not isinstance(root, dict):
        raise CountsError(f"must be an object, is {_kind(root)}")
    if root.get("version") != VERSION:
        raise CountsError(f"version: must be {VERSION}, is {_short(root.get('version'))}")
    kind = root.get("kind", "cumulative")
    if kind not in get_args(Kind):
        raise CountsError(f"kind: must be window or cumulative, is {_short(kind)}")
    time = _number(root, "time", None)
    if kind == "window" and time is None:
        raise CountsError("time: a window needs the unix time of its end, so that it is counted once")
    entries = root.get("loads", [root])
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise CountsError(f"loads: must be a list of at most {MAX_ENTRIES} objects")
    parsed = [_entry(entry, f"loads[{i}]" if "loads" in root else "", root, time or now, model)
              for i, entry in enumerate(entries)]
    return Document(
        instance=_text(root, "instance", ""), kind=cast("Kind", kind), time=time,
        loads=tuple(loads for loads, _ in parsed), placed_on=tuple(ranks for _, ranks in parsed))


def render(instance: str, time: float, loads: Iterable[ExpertLoads]) -> bytes:
    """Return the document of a window that ended at ``time``."""
    return json.dumps({
        "version": VERSION, "kind": "window", "instance": instance, "time": time,
        "loads": [
            {
                "model": part.model, "phase": part.phase, "scope": part.scope, "seconds": part.seconds,
                "layers": part.layers, "columns": part.columns, "counts": part.counts,
                "ranks_seen": part.ranks_seen, "ranks_expected": part.ranks_expected,
            }
            for part in loads
        ],
    }, separators=(",", ":")).encode()


def _entry(
    entry: object, where: str, root: dict[str, Any], time: float, model: str
) -> tuple[ExpertLoads, int | None]:
    prefix = f"{where}." if where else ""
    if not isinstance(entry, dict):
        raise CountsError(f"{where}: must be an object, is {_kind(entry)}")
    scope, phase = entry.get("scope"), entry.get("phase", "all")
    if scope not in get_args(Scope):
        raise CountsError(f"{prefix}scope: must be rank or expert, is {_short(scope)}")
    if phase not in get_args(Phase):
        raise CountsError(f"{prefix}phase: must be one of {', '.join(get_args(Phase))}, is {_short(phase)}")
    counts = _counts(entry.get("counts"), f"{prefix}counts", MAX_RANKS if scope == "rank" else MAX_EXPERTS)
    width = len(counts[0]) if counts else 0
    ranks = _ranks(entry, "ranks", prefix)
    if ranks is not None and scope == "expert" and width % ranks:
        raise CountsError(f"{prefix}ranks: {width} experts do not divide into {ranks} ranks of equal size")
    seconds = _number(entry, "seconds", _number(root, "seconds", 0.0, prefix), prefix)
    loads = ExpertLoads(
        model=_text(entry, "model", model, prefix), scope=cast("Scope", scope), counts=counts,
        seconds=seconds or 0.0, time=time, phase=cast("Phase", phase),
        layers=_identities(entry, "layers", len(counts), prefix),
        columns=_identities(entry, "columns", width, prefix),
        ranks_seen=_ranks(entry, "ranks_seen", prefix), ranks_expected=_ranks(entry, "ranks_expected", prefix))
    return loads, ranks if scope == "expert" else None


def _counts(value: object, where: str, columns: int) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise CountsError(f"{where}: must be a list of layers, each a list of counts")
    rows = cast("list[list[Any]]", value)
    width = len(rows[0]) if rows else 0
    if len(rows) > MAX_LAYERS or width > columns or len(rows) * width > MAX_CELLS:
        raise CountsError(f"{where}: {len(rows)} x {width}: at most {MAX_LAYERS} x {columns}, {MAX_CELLS} in all")
    for index, row in enumerate(rows):
        if len(row) != width:
            raise CountsError(f"{where}[{index}]: {len(row)} counts, layer 0 has {width}")
        if not set(map(type, row)) <= {int}:
            wrong = next(item for item in row if type(item) is not int)
            raise CountsError(f"{where}[{index}]: {_short(wrong)} is no whole number")
        if row and (min(row) < 0 or max(row) >= MAX_COUNT):
            raise CountsError(f"{where}[{index}]: counts must be from 0 to 2^48")
    return tuple(map(tuple, rows)) if width else ()


def _identities(entry: dict[str, Any], key: str, size: int, prefix: str) -> tuple[int, ...]:
    value = entry.get(key) or []
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < MAX_COUNT for item in value):
        raise CountsError(f"{prefix}{key}: must be a list of whole numbers")
    if value and (len(value) != size or len(set(value)) != size):
        raise CountsError(f"{prefix}{key}: must name each of the {size} once, names {len(value)}")
    return tuple(value)


def _ranks(entry: dict[str, Any], key: str, prefix: str) -> int | None:
    value = entry.get(key)
    if value is not None and not (type(value) is int and 1 <= value <= MAX_RANKS):
        raise CountsError(f"{prefix}{key}: must be a number of ranks, is {_short(value)}")
    return value


def _number(entry: dict[str, Any], key: str, default: float | None, prefix: str = "") -> float | None:
    value = entry.get(key, default)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e12 or not math.isfinite(value):
        raise CountsError(f"{prefix}{key}: must be a number of seconds, is {_short(value)}")
    return float(value)


def _text(entry: dict[str, Any], key: str, default: str, prefix: str = "") -> str:
    value = entry.get(key, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise CountsError(f"{prefix}{key}: must be a printable text of at most {MAX_TEXT} characters")
    return value


def _short(value: object) -> str:
    return repr(value)[:24] if isinstance(value, str | int | float) else _kind(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
