from __future__ import annotations

from pathlib import Path

import pytest

from k3observe.drill.binaries import PROJECT
from k3observe.drill.exposition import parse, write
from tools.make_expositions import SOURCES, reduce


@pytest.mark.parametrize("name", SOURCES)
def test_the_shipped_expositions_are_the_facts_of_their_captures(name: str, shared: Path) -> None:
    capture = (shared / "samples" / "engines" / SOURCES[name]).read_text(encoding="utf-8")
    shipped = (PROJECT / "k3observe" / "drill" / "engines" / name).read_text(encoding="utf-8")
    assert shipped == write(reduce(parse(capture)), "text", "colon")


@pytest.mark.parametrize("name", SOURCES)
def test_the_shipped_expositions_carry_no_help_texts_and_no_measured_values(name: str) -> None:
    shipped = (PROJECT / "k3observe" / "drill" / "engines" / name).read_text(encoding="utf-8")
    assert "# HELP" not in shipped
    assert {s.value for family in parse(shipped).families for s in family.series} <= {0.0, 1.0}
