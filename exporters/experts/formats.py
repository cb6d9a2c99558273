"""The lines in which engines report the balance of their experts, by engine and version.

Nothing is assumed about what stands before the message: prefixes, colours and JSON envelopes vary with the launcher.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from k3observe.exporters.experts.loads import BalanceReading, Rebalance

Engine = Literal["vllm", "sglang", "vllm-ascend"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "vllm-ascend")

_VLLM_MARKERS = b"balancedness=", b"Rearranging experts", b"async loop error (Rank"
_ASCEND_MARKERS = b"urrent: mean=", b"Subprocess crashed, EPLB", b"[EPLB subprocess "
_SGLANG_MARKERS = b"balancedness=", b"[EPLBManager] "
_MARKERS: dict[Engine | None, tuple[bytes, ...]] = {
    "vllm": _VLLM_MARKERS,
    "vllm-ascend": _VLLM_MARKERS + _ASCEND_MARKERS,
    "sglang": _SGLANG_MARKERS,
    None: tuple(dict.fromkeys(_VLLM_MARKERS + _ASCEND_MARKERS + _SGLANG_MARKERS)),
}
"""Every line that means something holds one of these; all others are passed over. Long ones are found faster."""
_VERSION_MARKERS = (b"LLM engine (v",)
_START_MARKERS = b"Rearranging experts", b"[EPLBManager] rebalance start"
_END_MARKERS = b"Rearranged experts", b"Skip rearrange"
_ALL_MARKERS = tuple(
    marker.decode() for marker in (*_MARKERS[None], *_VERSION_MARKERS, *_END_MARKERS))

MAX_TEXT = 65536
SKIP_AFTER_SECONDS = 60.0

_NUMBER = r"(\d{1,18}(?:\.\d{1,18})?)"
_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
# A line cut short by another process's holds the beginning of one and the whole of another: the name spans none.
# vLLM 0.9.2 to 0.11.0, 0.11.1 to 0.13.0 (adds step and model), 0.14.0 on (adds the steps left; negative when late).
_VLLM = re.compile(
    r"EPLB step:(?: \d+ for model (?P<model>(?:(?!EPLB step:|: avg_tokens=).){1,256}):)? "
    r"avg_tokens=(?P<avg>\d{1,18}(?:\.\d{1,18})?), "
    r"max_tokens=\d+, balancedness=(?P<value>\d\.\d+)(?P<left>, steps until the next rearrangement: -?\d+)?")
_SGLANG = re.compile(
    rf"\[Expert Balancedness\].*?current_pass_balancedness={_NUMBER}(?:.*?gpu_physical_count_sum=(\d{{1,18}}))?")
# vLLM-Ascend 0.18.0, and 0.22.1 on; later code has a percentile between.
_ASCEND = re.compile(
    rf"(?:\[Expert Hotness\] Current|xpert hotness imbalance, current): mean={_NUMBER},?(?: p\d+=[\d.]+,?)? "
    rf"max={_NUMBER}")
_VLLM_VERSION = re.compile(r"LLM engine \(v(\d+\.\d+[0-9A-Za-z.+-]{0,40})\)")
# vLLM-Ascend 0.22.1 on, before it, vLLM.
_CRASH = re.compile(
    r"\[eplb/worker\] Subprocess crashed|\[EPLB subprocess [Ee]xiting due to error|async loop error \(Rank")
# Profiling moves nothing: "(profile)" stands behind the mode from vLLM 0.12 on, at the end between blanks from 0.14 on.
_START = re.compile(
    r"Rearranging experts(?!(?: \(async mode\)| sync mode)? \(profile)|\[EPLBManager\] rebalance start")
_SKIP = re.compile(r"\[EPLB\] Skip rearrange|\[EPLBManager\] Skipped ep rebalancing")
_END = re.compile(
    rf"Rearranged experts(?! +\(profile)[^\n]{{0,80}}? in {_NUMBER} s|"
    rf"\[EPLBManager\] rebalance end(?: time={_NUMBER})?")


class Problem(NamedTuple):
    """Something the log says that is no reading: ``reason`` counts it, ``once`` is said one time only."""

    reason: str | None
    text: str
    once: bool = False


class LineReader:
    """Reads lines into readings; remembers the engine's version, the model named last and a rearrangement begun.

    ``model`` is the model's name where the engine does not print it (a drafter has lines and a name of its own).
    ``version`` is that of the engine; a version that the log announces is used where none is given. ``layers`` is the
    number of MoE layers, ``ranks`` of expert-parallel ranks: with them the sums that engines print become tokens per
    layer and rank.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        version: str | None = None,
        model: str = "",
        layers: int = 1,
        ranks: int | None = None,
    ) -> None:
        self._engine, self._model = engine, model
        self._set_version(version)
        self._layers, self._ranks = layers, ranks
        self._named = model
        self._begun: float | None = None
        self._called_off = self._skipped = False

    def read_block(self, block: bytes, now: float) -> Iterator[BalanceReading | Rebalance | Problem]:
        """Yield what the lines of a block say, in any encoding that extends ASCII."""
        markers = _MARKERS[self._engine] + (_VERSION_MARKERS if self._version is None else ())
        lines = marked_lines(block, markers)
        if self._begun is not None or any(marker in line for line in lines for marker in _START_MARKERS):
            lines = marked_lines(block, markers + _END_MARKERS)
        for line in lines:
            yield from self.read(line[:MAX_TEXT].decode("utf-8", "replace"), now)

    def read(self, line: str, now: float) -> Iterator[BalanceReading | Rebalance | Problem]:
        """Yield what a line says; ``now`` is the unix time to give it."""
        text = message(line[:MAX_TEXT])
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        if self._begun is not None and now - self._begun > SKIP_AFTER_SECONDS:
            yield from self._rearranged(None)
        if self._engine != "sglang":
            if match := _VLLM.search(text):
                if event := self._vllm(match, now):
                    yield event
                return
            if match := _ASCEND.search(text):
                if reading := self._ascend(match, now):
                    yield reading
                return
            if self._version is None and (match := _VLLM_VERSION.search(text)):
                self._set_version(match[1])
                return
        if self._engine in (None, "sglang") and (match := _SGLANG.search(text)):
            if reading := self._sglang(match, now):
                yield reading
        elif _CRASH.search(text):
            yield Problem("eplb_crashed", f"the engine's expert balancing has stopped: {text.strip()[:300]!r}")
        elif _SKIP.search(text):
            self._called_off = self._skipped = True
        elif match := _END.search(text):
            if self._skipped:  # vLLM prints the end of a model that it skipped too; a drafter's may follow
                self._skipped = False
            else:
                self._called_off = False
                seconds = match[1] or match[2]
                yield from self._rearranged(float(seconds) if seconds else None)
        elif (match := _START.search(text)) and not (self._moving() and "EPLBManager" in match[0]):
            # Every rank of SGLang writes its own start and end; vLLM's first rank alone does, without an end if async.
            yield from self._rearranged(None)
            self._begun = now

    def _moving(self) -> bool:
        return self._begun is not None and not self._called_off

    def _rearranged(self, seconds: float | None) -> Iterator[Rebalance]:
        """Yield the rearrangement begun: only once it ended, or was not called off for a minute."""
        if self._begun is not None and not self._called_off:
            yield Rebalance(self._named, self._begun, seconds)
        self._begun, self._called_off, self._skipped = None, False, False

    def _set_version(self, version: str | None) -> None:
        self._version = version
        self._old = version is not None and _older(version, (0, 28))

    def _vllm(self, match: re.Match[str], now: float) -> BalanceReading | Problem | None:
        named, average_text, value_text, left = match.groups()
        self._named = named or self._model
        value, average = float(value_text), float(average_text)
        if not (0 < value <= 1 and average > 0):
            return None  # an idle pass prints 0.0
        if self._old or left is None:
            # Before 0.28 mean and maximum ran over layers: a rank that is hot in every layer scored 1.0.
            return Problem(None, (
                f"vLLM {self._version or 'before 0.14'} prints a balancedness over layers, not ranks, so that no "
                "balance is exported: upgrade to vLLM 0.28 or use --experts.source plugin"), once=True)
        if self._version is None:
            return Problem(None, (
                "this EPLB line means the balance of ranks from vLLM 0.28 on only, and the version is not known, so "
                "that no balance is exported: give --experts.engine-version"), once=True)
        per_rank = average / self._layers
        return BalanceReading(
            self._named, "ratio_of_sums", value, now, weight=average, rank_load=per_rank, ranks=self._ranks,
            tokens=per_rank * self._ranks if self._ranks else None)

    def _ascend(self, match: re.Match[str], now: float) -> BalanceReading | None:
        mean, worst = float(match[1]), float(match[2])
        if not worst >= mean >= 1:
            return None  # max/mean of a layer is at least 1; 0 is printed for no load
        return BalanceReading(
            self._named, "reciprocal_of_mean", 1 / mean, now, worst=1 / worst, ranks=self._ranks)

    def _sglang(self, match: re.Match[str], now: float) -> BalanceReading | None:
        value, total = float(match[1]), int(match[2]) if match[2] else None
        if not 0 < value <= 1 or total == 0 or (total is None and value == 1):
            return None  # an idle pass prints 1.0
        tokens = total / self._layers if total else None
        return BalanceReading(
            self._named, "mean_of_layers", value, now, weight=total or 1.0, tokens=tokens, ranks=self._ranks,
            rank_load=tokens / self._ranks if tokens and self._ranks else None)


def message(line: str) -> str:
    """Return the text of a line; of a JSON log line, the string in it that holds a marker."""
    for _ in range(3):  # a container runtime's envelope around an engine's own
        start = line.find('{"')
        if start < 0:
            break
        try:
            value, _end = json.JSONDecoder().raw_decode(line[start:])
        except (ValueError, RecursionError):
            break
        found = next((text for text in _strings(value) if any(marker in text for marker in _ALL_MARKERS)), None)
        if found is None:
            break
        line = found.encode("utf-8", "replace").decode()  # JSON may hold lone surrogates, a label may not
    return line


def _strings(value: object, depth: int = 3) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth:
        for item in value.values():
            yield from _strings(item, depth - 1)


def _older(version: str, than: tuple[int, int]) -> bool:
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) < than


def check_version(version: str) -> str:
    """Return an engine's version as it is; raise ValueError where it does not begin with two numbers."""
    if not re.match(r"v?\d{1,9}\.\d{1,9}", version):
        raise ValueError(f"engine version {version!r} does not look like 0.28.0")
    return version


def marked_lines(block: bytes, markers: Iterable[bytes]) -> list[bytes]:
    """Return the lines of a block that hold a marker, in their order."""
    found: dict[int, bytes] = {}
    for marker in markers:
        at = block.find(marker)
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            end = len(block) if end < 0 else end
            found[start] = block[start:end]
            at = block.find(marker, end)
    return [found[start] for start in sorted(found)]
