"""Versions of engines and ranges of them, as catalogue entries and configurations write them.

An engine version in a configuration is often short ("0.11"): it then means the newest patch of that minor release,
because that is what an image tagged so contains. The bounds of a range are exact: "<0.12" ends before 0.12.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NEWEST = 10**6
"""Stands for the patch of a version that names none."""

_RELEASE = re.compile(
    r"^[vV]?(\d{1,6}(?:\.\d{1,6}){0,3})"
    r"(?:[._-]?(?:a|b|c|rc|alpha|beta|pre|post|dev)[._-]?\d*)*(?:[+-][a-zA-Z0-9][a-zA-Z0-9._+-]*)?$",
    re.I,  # MindIE: 2.0.RC2
)
_BOUND = re.compile(r"^(>=|<=|==|>|<)\s*(.+)$")


@dataclass(frozen=True, order=True)
class Version:
    """A release such as 0.9.2; four numbers at most (vLLM had a 0.10.1.1). Suffixes (rc1, .post1, +cu130) are ignored.

    A pre-release or development build counts as the release it precedes: it has that release's metrics, as a rule.
    """

    numbers: tuple[int, int, int, int]

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read "0.33", "v0.9.2", "0.23.0.post1"; a missing patch is the newest. ValueError for anything else."""
        found = _RELEASE.match(text.strip())
        if not found:
            raise ValueError(f"not a version: {text!r}: write it like 0.33 or 0.33.0")
        numbers = [int(part) for part in found[1].split(".")]
        filled = numbers + [_NEWEST] * (2 - len(numbers)) + [_NEWEST] * (3 - max(len(numbers), 2))
        return cls((filled[0], filled[1], filled[2], filled[3] if len(filled) > 3 else 0))

    @property
    def open(self) -> bool:
        """True when no patch was named, so that the version stands for any patch of its minor release."""
        return _NEWEST in self.numbers

    def __str__(self) -> str:
        shown = [number for number in self.numbers if number != _NEWEST]
        if not self.open and shown[3] == 0:
            shown = shown[:3]
        return ".".join(str(number) for number in (shown[:2] if self.open else shown))


@dataclass(frozen=True)
class VersionRange:
    """An interval of versions, ``low`` included and ``high`` excluded; None is no bound."""

    low: Version | None = None
    high: Version | None = None

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read ">=0.9.2,<0.12", "==0.5.2", "*" or "" (all versions). ValueError names the part that is wrong."""
        low: Version | None = None
        high: Version | None = None
        for part in (piece.strip() for piece in text.split(",") if piece.strip() not in ("", "*")):
            found = _BOUND.match(part)
            if not found:
                raise ValueError(f"not a version range: {part!r}: write it like >=0.9.2,<0.12")
            operator, bound = found[1], _exact(found[2])
            if operator in (">=", "=="):
                low = bound
            if operator == ">":
                low = _after(bound)
            if operator == "<":
                high = bound
            if operator in ("<=", "=="):
                high = _after(bound)
        if low is not None and high is not None and not low < high:
            raise ValueError(f"empty version range: {text!r}")
        return cls(low, high)

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, Version):
            return False
        return (self.low is None or self.low <= version) and (self.high is None or version < self.high)

    def __str__(self) -> str:
        parts = [f"{sign}{bound}" for sign, bound in ((">=", self.low), ("<", self.high)) if bound is not None]
        return ",".join(parts) or "*"


def joined(ranges: Iterable[VersionRange]) -> list[VersionRange]:
    """The same versions in as few ranges as can be, the oldest first."""
    found: list[VersionRange] = []
    for span in sorted(ranges, key=lambda span: span.low.numbers if span.low else ()):
        last = found[-1] if found else None
        if last is None or (last.high is not None and span.low is not None and last.high < span.low):
            found.append(span)
        elif last.high is not None and (span.high is None or last.high < span.high):
            found[-1] = VersionRange(last.low, span.high)
    return found


def _exact(text: str) -> Version:
    version = Version.parse(text)
    numbers = [0 if number == _NEWEST else number for number in version.numbers]
    return Version((numbers[0], numbers[1], numbers[2], numbers[3]))


def _after(version: Version) -> Version:
    """The least version above all builds of ``version``."""
    return Version((*version.numbers[:3], version.numbers[3] + 1))
