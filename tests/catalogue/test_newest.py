"""What counts as the newest known release is what was surveyed."""

from __future__ import annotations

import pytest

from k3observe.catalogue import Version, load
from k3observe.catalogue.history import history
from k3observe.versions import NEWEST, newer


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_newest_known_release_is_the_last_surveyed(engine: str) -> None:
    table = history(engine)
    assert table is not None
    last = table.releases[-1]
    assert newer(load(), engine, last) is None
    assert last.numbers[:2] == Version.parse(NEWEST[engine]).numbers[:2]


@pytest.mark.parametrize(("engine", "version", "is_newer"), [
    ("sglang", "0.5", False), ("sglang", "0.5.23.post1", False), ("sglang", "0.5.24", True), ("sglang", "0.6", True),
    ("vllm", "0.33.9", False), ("vllm", "1.0", True), ("vllm-ascend", "0.24", True), ("mindie", "2.0.RC2", False),
])  # fmt: skip
def test_only_what_is_beyond_it_is_newer(engine: str, version: str, is_newer: bool) -> None:
    assert (newer(load(), engine, Version.parse(version)) is not None) == is_newer
