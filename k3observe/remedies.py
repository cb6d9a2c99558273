"""Of all that is blind, the changes that would mend it: one line for each change instead of one for each alert.

An alert may want several things at once; it counts for a change only together with the others that it wants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from k3observe.arming import Blind
from k3observe.catalogue.model import Gap, Text
from k3observe.plan import Plan


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together arm ``alerts`` of a service (None without a configuration); no changes: nothing can."""

    service: str | None
    changes: tuple[Text, ...]
    alerts: tuple[str, ...]


def remedies(blind: Iterable[tuple[str | None, str, Sequence[Text | None]]]) -> list[Remedy]:
    """Service, alert and what it wants (None: what nothing gives) -> remedies by service, the most helpful first."""
    found: dict[tuple[str | None, frozenset[str]], tuple[tuple[Text, ...], list[str]]] = {}
    for service, alert, lacks in blind:
        given = [_change(fix) for fix in lacks if fix is not None]
        changes = {change.en: change for change in given} if len(given) == len(lacks) else {}
        found.setdefault((service, frozenset(changes)), (tuple(changes.values()), []))[1].append(alert)
    rows = [Remedy(service, changes, tuple(alerts)) for (service, _), (changes, alerts) in found.items()]
    return sorted(rows, key=lambda row: (row.service or "", not row.changes, -len(row.alerts), len(row.changes)))


def of_plan(plan: Plan) -> list[Remedy]:
    """What would arm the alerts that are not armed although nobody asked for that."""
    return remedies(
        (blind.service.name, blind.alert.name, wants(plan, blind)) for blind in plan.blind if not blind.wanted
    )


def lines(found: Sequence[Remedy], language: str) -> list[str]:
    """A line for each change, services that want the same together, what helps most first."""
    shared: dict[tuple[tuple[Text, ...], tuple[str, ...]], list[str]] = {}
    for row in found:
        shared.setdefault((row.changes, row.alerts), []).extend([row.service] if row.service else [])
    ordered = sorted(shared.items(), key=lambda item: (not item[0][0], -len(item[0][1]) * max(1, len(item[1]))))
    return [_line(changes, alerts, services, language) for (changes, alerts), services in ordered]


def _line(changes: Sequence[Text], alerts: Sequence[str], services: Sequence[str], language: str) -> str:
    where = ", ".join(services[:5]) + (f", … ({len(services)})" if len(services) > 5 else "")
    names = ", ".join(alerts)
    if language == "en":
        what = " and ".join(change.en for change in changes)
        told = f"{what}: arms {names}" if changes else f"no change is known that arms {names}"
        return (f"{where}: " if where else "") + told + f" ({len(alerts)} alert{'s' if len(alerts) > 1 else ''})"
    what = "，并".join(change.zh for change in changes)
    told = f"{what}：可启用 {names}" if changes else f"没有已知的办法启用 {names}"
    return (f"{where}：" if where else "") + told + f"（{len(alerts)} 条告警）"


def wants(plan: Plan, blind: Blind) -> tuple[Text | None, ...]:
    """All that an alert of the plan lacks; None stands for what nothing gives."""
    gaps = [gap for signal in blind.alert.signals for gap in _gaps(plan, blind.service.name, signal)]
    fixes = [gap.fix for gap in gaps]
    # where the alert itself asks for something else, what its signals lack depends on that
    return tuple(fixes) if blind.fix in fixes else (blind.fix,)


def _gaps(plan: Plan, service: str, signal: str) -> Iterator[Gap]:
    """All that a signal lacks, where ``Plan.why_not`` tells the first."""
    if plan.has(service, signal):
        return
    found = plan.sources[service].get(signal)
    if isinstance(found, Gap):
        yield found
    elif signal in plan.pack.derived:
        derived = plan.pack.derived[signal]
        for need in derived.needs:
            yield from _gaps(plan, service, need)
        if derived.any and not any(plan.has(service, need) for need in derived.any):
            yield from _gaps(plan, service, derived.any[0])


def _change(fix: Text) -> Text:
    """The first of the ways that a fix names; a bare flag goes to the engine's command."""
    en, zh = fix.en.partition(", or ")[0], re.split("，或", fix.zh, maxsplit=1)[0]
    if en.startswith("add --"):
        flag, comma, rest = en.partition(", and ")
        return Text(f"{flag} to the engine's command{comma}{rest}", f"在引擎启动命令里{zh}")
    return Text(en, zh)
