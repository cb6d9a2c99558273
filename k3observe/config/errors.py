"""Problems of a configuration, each with the place where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Path = tuple[str | int, ...]


def spell(path: Path) -> str:
    """Spell a path as an SRE would: ``services[0].engine.version``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: ``file:line: field: what: value: what to do``."""

    what: str
    path: Path = ()
    value: object = None
    fix: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = [place, spell(self.path), self.what, "" if self.value is None else shorten(self.value), self.fix]
        return _printable(": ".join(part for part in parts if part))


def _printable(text: str) -> str:
    """On one line, whatever a name in it holds: what cannot be printed is spelled as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` are all that was found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class FieldError(ValueError):
    """A value that does not fit the others of its section; ``path`` leads to it from there."""

    def __init__(self, what: str, path: Path, value: object = None, fix: str = "") -> None:
        self.what, self.path, self.value, self.fix = what, path, value, fix
        super().__init__(what)


def refuse_twice(path: Path, values: Sequence[object]) -> None:
    """Raise FieldError for an item of a list that stands in it already."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise FieldError("stands twice", (*path, index), value, "keep one of them")


def shorten(value: object, limit: int = 80) -> str:
    """Show a value in a message without flooding the terminal."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is nearest, else list the known ones, at most a dozen."""
    known = sorted(known)
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    listed = ", ".join(known[:12]) + (f", … ({len(known)})" if len(known) > 12 else "")
    return f"did you mean {near[0]!r}?" if near else f"known: {listed}"
