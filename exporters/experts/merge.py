"""Adding counts of the same layers and columns: intervals of a window, phases of a service, nodes of a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from k3observe.exporters.experts.loads import ExpertLoads


def layer_ids(loads: ExpertLoads) -> tuple[int, ...]:
    """Return the identities of the rows."""
    return loads.layers or tuple(range(len(loads.counts)))


def column_ids(loads: ExpertLoads) -> tuple[int, ...]:
    """Return the identities of the columns."""
    return loads.columns or tuple(range(len(loads.counts[0]) if loads.counts else 0))


def merge(parts: Sequence[ExpertLoads]) -> ExpertLoads:
    """Add counts of one model and scope; all other fields are those of the first part.

    Parts may count the same columns (each rank reports what it sent to every rank), different columns (each node
    reports what its own ranks received), or different layers (pipeline stages). Raises ValueError when parts overlap
    without being of the same columns (groups of different size), and when a layer would be left with columns that
    nobody counted: they are not 0.
    """
    first, *others = parts
    if all(part.layers == first.layers and part.columns == first.columns and _same(part, first) for part in others):
        same_layer = zip(*(part.counts for part in parts), strict=True)
        return replace(first, counts=tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in same_layer))
    rows: dict[int, dict[int, int]] = {}
    seen: set[frozenset[int]] = set()
    for part in parts:
        columns = column_ids(part)
        if any(not others.isdisjoint(columns) and others != set(columns) for others in seen):
            raise ValueError(f"{len(columns)} columns overlap with other columns that were counted")
        seen.add(frozenset(columns))
        for layer, loads in zip(layer_ids(part), part.counts, strict=True):
            row = rows.setdefault(layer, {})
            for column, load in zip(columns, loads, strict=True):
                row[column] = row.get(column, 0) + load
    layers = sorted(rows)
    wanted = sorted(set().union(*rows.values()))
    for layer in layers:
        if len(rows[layer]) < len(wanted):
            raise ValueError(f"layer {layer} has counts of {len(rows[layer])} columns, other layers of {len(wanted)}")
    counts = tuple(tuple(rows[layer][column] for column in wanted) for layer in layers)
    return replace(first, counts=counts, layers=tuple(layers), columns=tuple(wanted))


def _same(one: ExpertLoads, other: ExpertLoads) -> bool:
    return len(one.counts) == len(other.counts) and column_ids(one) == column_ids(other)


def all_phases(loads: Iterable[ExpertLoads]) -> list[ExpertLoads]:
    """Return the loads with phase ``all`` added up from the others where a source counts only phases.

    Phases that do not fit together (of groups of different size) have no sum.
    """
    loads = list(loads)
    groups: dict[tuple[str, str], list[ExpertLoads]] = {}
    for part in loads:
        groups.setdefault((part.model, part.scope), []).append(part)
    for parts in groups.values():
        if all(part.phase != "all" for part in parts):
            with contextlib.suppress(ValueError):
                loads.append(replace(merge(parts), phase="all"))
    return loads
