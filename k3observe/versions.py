"""How far the catalogue reaches: versions of engines that are newer than anything known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.model import Text
from k3observe.catalogue.version import Version
from k3observe.config.errors import spell
from k3observe.config.loader import Loaded

NEWEST: Mapping[str, str] = {"vllm": "0.33", "vllm-ascend": "0.23", "sglang": "0.5.23", "mindie": "2.0"}
"""The newest release of each engine whose metrics are known."""


def newer(catalogue: Catalogue, engine: str, version: Version) -> Text | None:
    """What is assumed of a version that is newer than all that is known; None for one that is not.

    What a catalogue of the user's own knows counts as well.
    """
    source = catalogue.sources[engine]
    if engine not in NEWEST:
        return None
    lows = [entry.versions.low for entry in source.entries if entry.versions.low is not None]
    known = max([Version.parse(NEWEST[engine]), *(lows if not source.extends else ())])
    if version.numbers[:2] <= known.numbers[:2] and (version.open or version <= known):
        return None
    return Text(
        f"{source.title} {version} is newer than the newest known, {known}, whose metrics are assumed; "
        "`k3observe doctor http://HOST:PORT/metrics` tells what differs",
        f"{source.title} {version} 比已知的最新版本 {known} 更新，按 {known} 的指标处理；"
        "用 `k3observe doctor http://HOST:PORT/metrics` 核对差异",
    )


def notes(loaded: Loaded, catalogue: Catalogue) -> Iterator[str]:
    """A line for each service whose engine is newer than anything known, with its place in the file."""
    for index, service in enumerate(loaded.config.services):
        if service.engine.version and service.engine.name in catalogue.sources:
            told = newer(catalogue, service.engine.name, Version.parse(service.engine.version))
            if told:
                path = ("services", index, "engine", "version")
                place = f"{loaded.source.file}:{loaded.source.line(path)}: {spell(path)}"
                yield f"{place}: {told.get(loaded.config.language)}"
