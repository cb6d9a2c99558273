"""Reads one ``/metrics``: from a URL, a file or standard input; plain or gzip, text format or OpenMetrics.

The body is read line by line and only samples of the wanted names are kept, so that 30 MB cost no more memory than
what is asked of them. Prometheus refuses a whole scrape for one bad line; so does this.
"""

from __future__ import annotations

import gzip
import io
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

MAX_BYTES = 64 << 20
"""Of the body after decompression; the largest exposition seen is 30 MB."""
MAX_SECONDS = 30.0
MAX_LINE = 1 << 20
MAX_KEPT = 300_000
MAX_NAMES = 50_000

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_INSIDE = rf'(?:[^"}}]|{_QUOTED})*'
_LINE = re.compile(
    rf'(?:({_NAME})(?:[ \t]*(\{{{_INSIDE}\}}))?|\{{[ \t]*"({_NAME})"[ \t]*,?({_INSIDE})\}})'
    r"[ \t]*(?<=[ \t}])(\S+)(?:[ \t]+(-?[0-9][0-9.eE+-]*))?[ \t]*(?:# .*)?$"
)
_LABEL = re.compile(r'[ \t]*("?)([a-zA-Z_][a-zA-Z0-9_]*)\1[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_TYPE = re.compile(rf'#[ \t]+TYPE[ \t]+"?({_NAME})"?[ \t]+(\S+)')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_HOST_PORT = re.compile(r"^(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/.*)?$")


class SourceError(ValueError):
    """A source cannot be read: ``source:line: what is wrong: what to do``."""


class Sample(NamedTuple):
    """One line of a wanted name; ``timestamp`` is Unix time in seconds where the line has one."""

    labels: Mapping[str, str]
    value: float
    timestamp: float | None


@dataclass(frozen=True)
class Exposition:
    """What one source said. Names are as the catalogue spells them (``vllm:x``), whatever the source wrote."""

    source: str
    url: str
    types: Mapping[str, str]
    """Type by family name; of a counter with its ``_total``."""
    counts: Mapping[str, int]
    """Series by sample name, of all names."""
    samples: Mapping[str, tuple[Sample, ...]]
    """Samples of the wanted names."""
    spelling: str
    """"underscore" when engine names came as ``vllm_x``, else "colon"."""
    openmetrics: bool
    notes: tuple[str, ...] = ()


def read(source: str, wanted: Callable[[str], bool], stdin: IO[bytes] | None = None) -> Exposition:
    """Read ``source`` (a URL, ``host:port``, a file, or ``-``), keeping samples whose name ``wanted`` accepts.

    Raises SourceError when it cannot be read, is no exposition, is cut short or exceeds the limits.
    """
    if source == "-":
        if stdin is None:
            raise SourceError("-: there is no standard input: pipe an exposition into it")
        return parse(_bounded(stdin, "-"), "-", wanted)
    if "://" not in source and (Path(source).exists() or not _HOST_PORT.match(source)):
        try:
            with Path(source).open("rb") as file:
                return parse(_bounded(file, source), source, wanted)
        except OSError as error:
            what = error.strerror or type(error).__name__
            raise SourceError(f"{source}: cannot be read: {what}: give a file, a URL or -") from None
    url = metrics_url(source)
    return parse(_fetched(url), source, wanted, url)


def metrics_url(source: str) -> str:
    """The URL of a source; without a path it is ``/metrics``, without a scheme http. SourceError when it is none."""
    text = source if "://" in source else f"http://{source}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise SourceError(f"{source}: is no URL: write it like http://host:8000/metrics") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise SourceError(f"{source}: is no URL: write it like http://host:8000/metrics")
    return text if parts.path not in ("", "/") else parts._replace(path="/metrics").geturl()


def answer(url: str, limit: int, seconds: float) -> bytes:
    """The body of a small answer such as ``/version``. Raises OSError (of which requests' errors are) or ValueError."""
    with _session(url).get(url, stream=True, timeout=seconds) as response:
        if response.status_code != 200:
            raise ValueError(f"answered {response.status_code}")
        body: bytes = response.raw.read(limit, decode_content=True)
        return body


def _session(url: str):  # type: ignore[no-untyped-def]  # requests is slow to import and needed for URLs only
    import requests

    session = requests.Session()
    session.trust_env = urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")  # no proxy to this machine
    return session


def _fetched(url: str) -> Iterator[bytes]:
    import requests
    import urllib3

    headers = {"Accept": "text/plain;version=0.0.4,*/*;q=0.1", "Accept-Encoding": "gzip"}
    deadline = time.monotonic() + MAX_SECONDS
    try:
        with _session(url).get(url, headers=headers, stream=True, timeout=(5, 15)) as response:
            if response.status_code != 200:
                hint = "is this the path of the metrics?" if response.status_code == 404 else "see its log"
                raise SourceError(f"{url}: answered {response.status_code} {response.reason}: {hint}")
            if "html" in response.headers.get("Content-Type", ""):
                raise SourceError(f"{url}: is a web page, not metrics: give the URL of /metrics")
            raw = response.raw
            raw.decode_content = False
            for piece in _bounded(raw, url):
                if time.monotonic() > deadline:
                    raise SourceError(f"{url}: did not end within {MAX_SECONDS:.0f} s: is it overloaded?")
                yield piece
    except requests.RequestException as error:
        raise SourceError(f"{url}: cannot be reached: {_cause(error)}: is the address right?") from None
    except (OSError, urllib3.exceptions.HTTPError) as error:
        raise SourceError(f"{url}: broke off: {error}: try again") from None


def _cause(error: BaseException) -> str:
    text = str(error)
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)|(timed out|[Cc]ertificate verify failed|certificate[^'\")]*)", text)
    return next((part for part in (found.groups() if found else ()) if part), type(error).__name__)


def _bounded(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Pieces of a body, unpacked if it is gzip; SourceError when it is too large or its gzip is broken."""
    first = file.read(2)
    body = _Prefixed(first, file)
    stream: _Prefixed | gzip.GzipFile = body
    if first == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=body)
    total = 0
    while True:
        try:
            piece = stream.read(1 << 16)
        except EOFError:
            raise SourceError(f"{name}: is cut short: the gzip data ends too early: capture it again") from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(f"{name}: is broken gzip: {error}: capture it again") from None
        if not piece:
            return
        total += len(piece)
        if total > MAX_BYTES:
            raise SourceError(f"{name}: is larger than {MAX_BYTES >> 20} MiB: is it an exposition?")
        yield piece


class _Prefixed(io.RawIOBase):
    """A stream with bytes put back in front of it."""

    def __init__(self, prefix: bytes, rest: IO[bytes]) -> None:
        self._prefix = prefix
        self._rest = rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._prefix:
            found, self._prefix = self._prefix, b""
            return found
        return self._rest.read(size) or b""


def parse(pieces: Iterator[bytes], source: str, wanted: Callable[[str], bool], url: str = "") -> Exposition:
    """Read an exposition from pieces of its body; SourceError names the line that is wrong."""
    types: dict[str, str] = {}
    counts: dict[str, int] = {}
    samples: dict[str, list[Sample]] = {}
    kept, number, ended, cut = 0, 0, False, False
    spelled: set[str] = set()
    for number, (line, whole) in enumerate(_lines(pieces, source), 1):
        if ended and line.strip():
            raise SourceError(f"{source}:{number}: stands after # EOF: two captures in one file? give them one by one")
        if not line or line.isspace():
            continue
        if line[0] == "#":
            ended = ended or line.rstrip() == "# EOF"
            found = _TYPE.match(line)
            if found:
                types[canonical(found[1])] = found[2]
            continue
        match = _LINE.match(line)
        value = _number(match[5]) if match else None
        if match is None or value is None:
            raise _bad_line(line, number, whole, source)
        written = match[1] or match[3]
        name = canonical(written)
        if name != written:
            spelled.add("underscore")
        cut = cut or not whole
        if name not in counts and len(counts) >= MAX_NAMES:
            raise SourceError(f"{source}:{number}: has more than {MAX_NAMES} metric names: is it an exposition?")
        counts[name] = counts.get(name, 0) + 1
        if wanted(name):
            kept += 1
            if kept > MAX_KEPT:
                raise SourceError(f"{source}:{number}: has more than {MAX_KEPT} series of engine metrics: {name}")
            labels = _labels((match[2] or "{}")[1:-1] if match[1] else match[4])
            if labels is None:
                raise _bad_line(line, number, whole, source)
            samples.setdefault(name, []).append(Sample(labels, value, _number(match[6]) if match[6] else None))
    if not counts:
        raise SourceError(f"{source}: has no metrics in it" + (": is it the right path?" if url else ": is it empty?"))
    notes = ("the last line has no line feed: the capture may be cut short",) if cut and not ended else ()
    scale = 1.0 if ended else 0.001  # the text format counts milliseconds
    return Exposition(
        source,
        url,
        _named_as_sampled(types, counts),
        counts,
        {name: tuple(s._replace(timestamp=s.timestamp * scale if s.timestamp is not None else None) for s in rows)
         for name, rows in samples.items()},
        "underscore" if spelled else "colon",
        ended,
        notes,
    )  # fmt: skip


def canonical(name: str) -> str:
    """A name as the catalogue spells it: scrapers that know no colons write ``vllm_x`` for ``vllm:x``."""
    for prefix in ("vllm", "sglang"):
        if name.startswith(prefix + "_"):
            return f"{prefix}:{name[len(prefix) + 1 :]}"
    return name


def _lines(pieces: Iterator[bytes], source: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether a line feed ended them."""
    rest = b""
    count = 0
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            count += 1
            yield _decoded(line, source, count), True
        if len(rest) > MAX_LINE:
            raise SourceError(
                f"{source}:{count + 1}: has a line longer than {MAX_LINE >> 20} MiB: is it an exposition?"
            )
    if rest:
        yield _decoded(rest, source, count + 1), False


def _decoded(line: bytes, source: str, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError:
        raise SourceError(f"{source}:{number}: is not UTF-8: {line[:40]!r}: is it an exposition?") from None


def _bad_line(line: str, number: int, whole: bool, source: str) -> SourceError:
    shown = line if len(line) <= 100 else line[:99] + "…"
    shown = "".join(character if character.isprintable() else "?" for character in shown)
    if line.lstrip()[:1] == "<":
        return SourceError(f"{source}:{number}: is a web page, not metrics: {shown}: give the URL of /metrics")
    if not whole:
        return SourceError(f"{source}:{number}: is cut short in the middle of a line: {shown}: capture it again")
    return SourceError(f"{source}:{number}: is no sample: {shown}: Prometheus refuses the whole scrape for this line")


def _labels(block: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    position = 0
    while block[position:].strip():
        match = _LABEL.match(block, position)
        if match is None or match[2] in found:
            return None
        text = match[3]
        found[match[2]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), text) if "\\" in text else text
        position = match.end()
    return found


def _number(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _named_as_sampled(types: Mapping[str, str], counts: Mapping[str, int]) -> dict[str, str]:
    """OpenMetrics leaves ``_total`` off the family of a counter; samples have it."""
    found = {}
    for name, kind in types.items():
        counter = kind == "counter" and not name.endswith("_total") and name + "_total" in counts
        found[name + "_total" if counter else name] = kind
    return found
