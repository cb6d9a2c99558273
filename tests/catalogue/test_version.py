from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3observe.catalogue.version import Version, VersionRange, joined

numbers = st.lists(st.integers(0, 99), min_size=3, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.mark.parametrize(
    ("version", "span", "inside"),
    [
        ("0.11", ">=0.11.1", True),
        ("0.11", "<0.11.2", False),
        ("0.11", "<0.12", True),
        ("0.11.2", ">=0.9.2,<0.12", True),
        ("0.12.0", ">=0.9.2,<0.12", False),
        ("0.9.2", ">=0.9.2", True),
        ("0.9.1", ">=0.9.2", False),
        ("0.10.1.1", ">0.10.1,<0.10.2", True),
        ("0.5.2", "==0.5.2", True),
        ("0.5.2.1", "==0.5.2", False),
        ("0.23.0.post1", ">=0.23,<0.24", True),
        ("v0.11.0rc2+cu130", "==0.11.0", True),
        ("1", ">=0.9", True),
        ("0.33", "*", True),
    ],
)
def test_a_missing_patch_means_the_newest_and_bounds_are_exact(version: str, span: str, inside: bool) -> None:
    assert (Version.parse(version) in VersionRange.parse(span)) is inside


@pytest.mark.parametrize("text", ["", "latest", "0..9", "0.9.x.y.z", "9999999999.1", "0.9;rm"])
def test_what_is_no_version_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like 0\.33"):
        Version.parse(text)


@pytest.mark.parametrize("text", ["0.9", "~=0.9", ">=0.12,<0.9", ">=0.9 <0.12"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="version"):
        VersionRange.parse(text)


@given(numbers, numbers)
def test_versions_order_as_their_numbers_do(one: str, other: str) -> None:
    def key(text: str) -> tuple[int, ...]:
        parts = [int(part) for part in text.split(".")]
        return tuple(parts + [0] * (4 - len(parts)))

    assert (Version.parse(one) < Version.parse(other)) is (key(one) < key(other))
    assert Version.parse(str(Version.parse(one))) == Version.parse(one)


@pytest.mark.parametrize(("spans", "fewest"), [
    ([">=0.24.0", ">=0.16.0,<0.24.0"], [">=0.16.0"]),
    (["<0.9", ">=0.11,<0.12", ">=0.11.5,<0.14"], ["<0.9.0", ">=0.11.0,<0.14.0"]),
    (["<0.9", "*", ">=0.20"], ["*"]),
    ([], []),
])  # fmt: skip
def test_ranges_that_touch_are_told_as_one(spans: list[str], fewest: list[str]) -> None:
    assert [str(span) for span in joined(map(VersionRange.parse, spans))] == fewest
