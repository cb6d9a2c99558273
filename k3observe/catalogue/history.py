"""All metrics of an engine by release, known from a survey of its code: to date an exposition and to check names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.model import Entry, Text
from k3observe.catalogue.version import Version

FOLDER = Path(__file__).parent / "history"
_SUFFIX = re.compile(r"_(?:bucket|count|sum|created)$")


@dataclass(frozen=True)
class Metric:
    """A metric family: the first and the last surveyed release that has it (None: the newest still has it).

    From ``hidden`` on only a flag shows it. ``presence`` is "always" where every exposition of these releases has it
    under load, "seeded" where even an idle server does, "python" where those of the Python frontend do, "" where that
    is not known or depends on flags and traffic.
    """

    name: str
    type: Literal["counter", "gauge", "histogram", "summary"]
    first: Version
    last: Version | None
    hidden: Version | None
    presence: Literal["always", "seeded", "python", ""]
    labels: tuple[str, ...]

    def exists(self, version: Version) -> bool:
        """True when releases of this version have the metric, if only behind a flag."""
        return self.first <= version and (self.last is None or _floor(version) <= self.last)

    def visible(self, version: Version) -> bool:
        """True when releases of this version show the metric without a flag."""
        return self.exists(version) and (self.hidden is None or version < self.hidden)


@dataclass(frozen=True)
class History:
    """The metrics of an engine and the releases that were surveyed."""

    releases: tuple[Version, ...]
    metrics: Mapping[str, Metric]

    def family(self, name: str) -> Metric | None:
        """The metric a sample name belongs to, in either spelling (``vllm_x_bucket`` is of ``vllm:x``)."""
        for candidate in (name, re.sub(r"^(vllm|sglang)_", r"\1:", name)):
            for family in (candidate, _SUFFIX.sub("", candidate), candidate + "_total"):
                if family in self.metrics:
                    return self.metrics[family]
        return None


@lru_cache(maxsize=8)
def history(name: str) -> History | None:
    """The history of an engine ("vllm", "sglang"), None where none was surveyed."""
    path = FOLDER / f"{name}.txt"
    if not name or not path.is_file():
        return None
    releases: tuple[Version, ...] = ()
    metrics: dict[str, Metric] = {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# releases "):
            releases = tuple(Version.parse(release) for release in line.split()[2:])
        elif not line.startswith("#"):
            family, kind, first, last, hidden, presence, labels = line.split("\t")
            metrics[family] = Metric(
                family,
                kind,  # type: ignore[arg-type]  # written by tools/make_history.py
                Version.parse(first),
                Version.parse(last) if last else None,
                Version.parse(hidden) if hidden else None,
                presence,  # type: ignore[arg-type]
                tuple(labels.split(",")) if labels else (),
            )
    return History(releases, metrics)


def _floor(version: Version) -> Version:
    """The first patch of an open version: "0.11" reaches back to 0.11.0."""
    if not version.open:
        return version
    major, minor = version.numbers[0], version.numbers[1]
    return Version((major, minor if minor < 10**6 else 0, 0, 0))


def name_problem(catalogue: Catalogue, source: str, name: str, version: Version) -> Text | None:
    """What is wrong with a raw metric name in somebody's rule or dashboard, None when that version has it.

    The replacement is named where the catalogue knows one: the metric that carries the same signal now.
    """
    known = catalogue.sources[source]
    table = history(known.history)
    if table is None or not name.startswith((known.prefix, known.prefix.replace(":", "_"))):
        return None
    title = f"{known.title} {version}"
    metric = table.family(name)
    if metric is None:
        return Text(f"{name} is unknown to every surveyed release of {known.title}",
                    f"{known.title} 的所有已知版本都没有 {name}")  # fmt: skip
    if metric.visible(version):
        return None
    successor = _successor(catalogue, source, metric.name, version)
    en, zh = f"{name} is unknown to {title}", f"{title} 没有 {name}"
    if metric.exists(version):
        en, zh = f"{name} is hidden in {title}", f"{title} 默认隐藏 {name}"
    elif version < metric.first:
        return Text(f"{en}: it came with {metric.first}", f"{zh}：{metric.first} 才引入")
    if successor:
        start = successor.versions.low
        return Text(f"{en}: use {successor.metric}" + (f", there since {start}" if start else ""),
                    f"{zh}：请改用 {successor.metric}" + (f"（{start} 起提供）" if start else ""))  # fmt: skip
    if metric.last is None:
        return Text(en, zh)
    return Text(f"{en}: removed after {metric.last}", f"{zh}：{metric.last} 之后已移除")


def _successor(catalogue: Catalogue, source: str, name: str, version: Version) -> Entry | None:
    for entry in catalogue.sources[source].entries:
        if name in entry.metrics and name not in (entry.blocks,):
            now = catalogue.entry(source, entry.signal, version)
            if isinstance(now, Entry) and name not in now.metrics:
                return now
    return None
