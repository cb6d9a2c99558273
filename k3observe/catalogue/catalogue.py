"""The catalogue as one value, and the choice of the entry that fits a version and a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k3observe.catalogue.model import Entry, Gap, Signal, Source, Text
from k3observe.catalogue.version import Version, VersionRange, joined


@dataclass(frozen=True)
class Catalogue:
    """All signals and all sources, by name."""

    signals: Mapping[str, Signal]
    sources: Mapping[str, Source]

    def entry(
        self, source: str, signal: str, version: Version | None = None, facts: Mapping[str, object] | None = None
    ) -> Entry | Gap:
        """How ``source`` gives ``signal`` at ``version`` (None: its newest), or why it does not.

        ``facts`` are what the configuration says (engine.args fields, ``role``, ``sidecar.collect``, ...); an entry
        whose ``when`` or ``unless`` they contradict becomes a Gap whose fix names the flag that enables it.
        KeyError for an unknown source or signal.
        """
        given = facts or {}
        known = self.sources[source]
        wanted = self.signals[signal]
        blocked: list[tuple[bool, Gap]] = []
        for candidate in known.entries:
            if candidate.signal != signal or not _covers(candidate.versions, version):
                continue
            refusal = _refusal(candidate, given)
            if refusal is None:
                return candidate
            blocked.append(("role" in candidate.when, refusal))
        if blocked:  # what is meant for another role says less than what a flag switches off
            return min(blocked, key=lambda item: item[0])[1]
        for gap in known.gaps:
            if gap.signal == signal and _covers(gap.versions, version):
                return gap
        return _unknown(known, wanted, version)

    def candidates(self, source: str, signal: str, version: Version | None = None) -> tuple[Entry, ...]:
        """Every entry that could serve at ``version``, whatever the configuration says; the preferred one first."""
        return tuple(
            entry
            for entry in self.sources[source].entries
            if entry.signal == signal and _covers(entry.versions, version)
        )


def _covers(versions: VersionRange, version: Version | None) -> bool:
    return versions.high is None if version is None else version in versions


def _value(fact: object) -> tuple[str, ...]:
    if isinstance(fact, bool):
        return (str(fact).lower(),)
    if isinstance(fact, (list, tuple, set, frozenset)):
        return tuple(str(item) for item in fact)
    return (str(fact),)


def _refusal(entry: Entry, facts: Mapping[str, object]) -> Gap | None:
    """None when the facts allow the entry; in ``when`` an unknown fact refuses, in ``unless`` it does not."""
    for name, value in entry.when.items():
        if not set(value.split("|")) & set(_value(facts.get(name))):
            return _gap(entry, f"needs {name}: {value}", f"需要 {name}: {value}", entry.enable)
    for name, value in entry.unless.items():
        if set(value.split("|")) & set(_value(facts.get(name))):
            fix = entry.otherwise or entry.enable
            return _gap(entry, f"does not exist with {name}: {value}", f"在 {name}: {value} 时不存在", fix)
    return None


def _gap(entry: Entry, en: str, zh: str, fix: str) -> Gap:
    reason = Text(f"{entry.metric} {en}", f"{entry.metric} {zh}")
    return Gap(entry.source, entry.signal, entry.versions, reason, Text(f"add {fix}", f"加上 {fix}") if fix else None)


def _unknown(source: Source, signal: Signal, version: Version | None) -> Gap:
    ranges = joined(entry.versions for entry in source.entries if entry.signal == signal.name)
    name = f"{source.title} {version}" if version else source.title
    if not ranges:
        return Gap(
            source.name,
            signal.name,
            VersionRange(),
            Text(f"{source.title} has no metric for {signal.name}", f"{source.title} 没有 {signal.name} 的指标"),
        )
    spans = " / ".join(str(span) for span in ranges)
    return Gap(
        source.name,
        signal.name,
        VersionRange(),
        Text(
            f"{name} has no metric for {signal.name}; versions {spans} have one",
            f"{name} 没有 {signal.name} 的指标；{spans} 版本才有",
        ),
        Text(f"use {source.title} {spans}", f"使用 {source.title} {spans}"),
    )
