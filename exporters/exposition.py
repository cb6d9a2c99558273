"""Reads the wanted samples of a Prometheus exposition, text 0.0.4 or OpenMetrics, without parsing the rest.

A large engine exposes 20,000 lines of which a dozen names matter. One regular expression finds their lines in the
undecoded body; only those are parsed. Names are wanted in one spelling (``vllm:x``) and found in both (``vllm_x``:
prometheus_client from 0.23 on writes it unless the scraper asks for UTF-8 names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_SAMPLES = 50_000
MAX_LABELS = 16 * 1024
"""Bytes of a line after its name; what is longer is no label that anybody could use."""

_CLOSING = re.compile(rb"[ \t]*\}")
_LABEL = rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"[^"\\]*")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*'
_NEXT_LABEL = re.compile(_LABEL + rb"(,|\}|\Z)")
_ESCAPE = re.compile(r'\\([\\n"])')
_VALUE = re.compile(
    rb"[ \t]*([+-]?(?:[0-9.][0-9.eE+-]*|[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?))"
    rb"(?:[ \t]+[+-]?[0-9][0-9.eE+-]*)?"  # a timestamp
    rb"[ \t]*(?:#.*)?")  # an exemplar


class Sample(NamedTuple):
    """A sample under the name it was wanted by."""

    name: str
    labels: dict[str, str]
    value: float


class Reading(NamedTuple):
    """The wanted samples in the order of the exposition, and how many of their lines were unusable."""

    samples: tuple[Sample, ...]
    malformed: int


class Reader:
    """Finds the samples of some names (as in the sample lines: ``x_total``, ``x_bucket``)."""

    def __init__(self, names: Iterable[str], max_samples: int = MAX_SAMPLES) -> None:
        self._names = {name.replace(":", "_").encode(): name for name in names}
        self._max_samples = max_samples
        alternatives = _alternatives(self._names.values())
        self._find = re.compile(
            rb'\n[ \t]*(?:(%b)[ \t]*(?=[{ \t])|\{[ \t]*"(%b)"[ \t]*(?:,|(?=\})))(.*)' % (alternatives, alternatives))

    def read(self, body: bytes) -> Reading:
        """Return the wanted samples of a body.

        Lines that are no sample are skipped and counted; so is the last line when no line feed ends it, since its
        value may be cut short. Timestamps and exemplars are ignored. Never raises for a body.
        """
        samples: list[Sample] = []
        malformed = 0
        if not body.endswith(b"\n"):
            body, _, cut = body.rpartition(b"\n")
            body += b"\n"
            malformed += self._find.match(b"\n" + cut) is not None
        first = self._find.match(b"\n" + body[: body.find(b"\n")])
        for match in (*((first,) if first else ()), *self._find.finditer(body)):
            plain, quoted, rest = match.groups()
            name = self._names[(plain or quoted).replace(b":", b"_")]
            usable = len(rest) <= MAX_LABELS and len(samples) < self._max_samples
            sample = _parse(name, b"{" + rest if quoted else rest) if usable else None
            if sample is None:
                malformed += 1
            else:
                samples.append(sample)
        return Reading(tuple(samples), malformed)


def help_of(body: bytes, name: str) -> str | None:
    """Return the HELP text of a family, in either spelling of its name; None when there is none."""
    pattern = rb"^# HELP %b (.*)$" % re.escape(name.encode()).replace(b":", b"[:_]")
    match = re.search(pattern, body, re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match else None


def _alternatives(names: Iterable[str]) -> bytes:
    """Return a pattern for any of the names; grouped by prefix, so that a line of another family fails early."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (-len(name), name)):
        prefix, _, rest = name.rpartition(":")
        groups.setdefault(prefix, []).append(re.escape(rest))
    return "|".join(
        (re.escape(prefix).replace(":", "[:_]") + "[:_]" if prefix else "") + f"(?:{'|'.join(rests)})"
        for prefix, rests in groups.items()).encode()


def _parse(name: str, rest: bytes) -> Sample | None:
    """Parse what follows the name: labels, value and what is ignored after it."""
    labels: dict[str, str] = {}
    position = 0
    if rest[:1] == b"{":
        position = 1
        while True:
            match = _NEXT_LABEL.match(rest, position)
            if match is None:
                closing = _CLOSING.match(rest, position)
                if closing is None:
                    return None
                position = closing.end()
                break
            try:
                label, value = match[1].decode().strip('"'), match[2].decode()
            except UnicodeDecodeError:
                return None
            if label in labels or match[3] == b"":
                return None
            labels[label] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
            position = match.end()
            if match[3] == b"}":
                break
    number = _VALUE.fullmatch(rest.rstrip(b"\r"), position)
    if number is None:
        return None
    try:
        return Sample(name, labels, float(number[1]))
    except ValueError:
        return None


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
