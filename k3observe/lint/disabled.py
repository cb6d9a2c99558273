"""Comments that switch a check off: ``# k3observe disable promql/rate-window``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from k3observe.config.errors import did_you_mean
from k3observe.lint.finding import Finding

_COMMENT = re.compile(r"#\s*k3observe\s+disable\s+([\w/-]+(?:\s*,\s*[\w/-]+)*)")


@dataclass(frozen=True, slots=True)
class Disabled:
    """Comments of one file. Above the first thing in it they hold for all of it, else for the rule or job they are in.

    ``starts`` are the lines on which rules and jobs begin; comments right above belong to what follows.
    """

    file: str
    lines: tuple[str, ...]
    comments: tuple[tuple[int, frozenset[str]], ...]
    starts: tuple[int, ...]

    @classmethod
    def read(cls, file: str, text: str, starts: Iterable[int]) -> Disabled:
        """Find the comments of a file; ``starts`` are lines on which rules and jobs begin."""
        lines = tuple(text.split("\n"))
        comments = tuple(
            (number, frozenset(re.split(r"\s*,\s*", match[1])))
            for number, line in enumerate(lines, 1) if "k3observe" in line and (match := _COMMENT.search(line))
        )  # fmt: skip
        return cls(file, lines, comments, tuple(sorted({_above(lines, start) for start in starts})) if comments else ())

    def hides(self, finding: Finding) -> bool:
        """Whether a comment switches this finding off."""
        head = next((n for n, line in enumerate(self.lines, 1) if line.strip() and line.strip()[0] not in "#-"), 0)
        position = bisect_right(self.starts, finding.line)
        first = self.starts[position - 1] if position else 1
        last = self.starts[position] - 1 if position < len(self.starts) else len(self.lines)
        return any(
            finding.check in ids and (number < head or first <= number <= last) for number, ids in self.comments
        )

    def unknown(self, known: frozenset[str]) -> Iterator[Finding]:
        """Comments that name a check which does not exist, and so switch nothing off."""
        for number, ids in self.comments:
            for name in sorted(ids - known):
                yield Finding(self.file, number, "lint/unknown-check", "no check has this id", name,
                              did_you_mean(name, known) if "/" in name else "")  # fmt: skip


def _above(lines: tuple[str, ...], start: int) -> int:
    """The first of the comment lines right above a line."""
    while start > 1 and lines[start - 2].lstrip().startswith("#"):
        start -= 1
    return start
