"""Real expositions, read by a parser that is not ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from k3observe.catalogue import Catalogue, Version, load


class Captured(NamedTuple):
    """An exposition of known engine and version: types of families and samples by name."""

    name: str
    engine: str
    version: Version
    text: str
    types: Mapping[str, str]
    samples: Mapping[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load()


def captured(path: Path, engine: str, version: str) -> Captured:
    types: dict[str, str] = {}
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    text = path.read_text("utf-8")
    for family in text_string_to_metric_families(text):
        types[family.name + "_total" if family.type == "counter" else family.name] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return Captured(path.name, engine, Version.parse(version), text, types, samples)


@pytest.fixture(scope="session")
def expected(shared: Path) -> dict[str, dict[str, object]]:
    known: dict[str, dict[str, object]] = json.loads((shared / "samples/engines/expected.json").read_text("utf-8"))
    return known


@pytest.fixture(scope="session")
def captures(shared: Path, expected: dict[str, dict[str, object]]) -> dict[str, Captured]:
    folder = shared / "samples/engines"
    found = {name: captured(folder / name, str(known["engine"]), str(known["version"]))
             for name, known in expected.items()}  # fmt: skip
    found["mindie-documented.prom"] = captured(folder / "mindie-documented.prom", "mindie", "2.0")
    return found
