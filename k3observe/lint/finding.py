"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from k3observe.config.errors import Problem, shorten
from k3observe.lint.surroundings import Surroundings

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that a check found in its subject: what is wrong, the value that is, and what to do.

    ``line`` counts from 1 in the subject's file; 0 stands for the line where the subject begins.
    """

    what: str
    value: object = None
    fix: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A fault with its place and the id of the check, such as ``promql/rate-window``."""

    file: str
    line: int
    check: str
    what: str
    value: str = ""
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, self.check, self.what, self.value, self.fix) if part)

    @classmethod
    def of(cls, fault: Fault, check: str, file: str, line: int) -> Finding:
        """Place what a check yielded."""
        value = "" if fault.value is None else fault.value if isinstance(fault.value, str) else shorten(fault.value)
        return cls(file, fault.line or line, check, fault.what, _one_line(value), fault.fix)

    @classmethod
    def from_problem(cls, problem: Problem, check: str) -> Finding:
        """Carry over a problem that a reader of files met."""
        return cls(problem.file, problem.line, check, problem.what, "", problem.fix)

    def data(self) -> dict[str, Any]:
        """The finding for machines, with the page that explains the check."""
        names = ("check", "file", "line", "what", "value", "fix")
        return {name: getattr(self, name) for name in names} | {"page": f"docs/checks/{self.check}.md"}


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """A check of one kind of subject: a rule, a scrape configuration, a dashboard.

    ``id`` is stable: people write it into ``# k3observe disable`` comments. Each has a page ``docs/checks/<id>.md``.
    """

    id: str
    find: Callable[[S, Surroundings], Iterator[Fault]]


def _one_line(text: str, limit: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
