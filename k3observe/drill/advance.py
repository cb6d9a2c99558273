"""An exposition that lives: counters and histograms advance at chosen rates, gauges are set, a restart zeroes counters.

A histogram stays consistent at every instant: its buckets are cumulative, `+Inf` equals `_count`, `_sum` follows the
observed values.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from k3observe.drill.exposition import Exposition, Family, Series, created_base

_NO_LABELS: Mapping[str, str] = {}


class UnknownSeriesError(LookupError):
    """The capture has no such series; the message names the nearest."""


@dataclass(frozen=True)
class _Course:
    """A value that grows by `rate` a second from `start` on."""

    start: float
    rate: float
    since: float

    def at(self, now: float) -> float:
        return self.start + self.rate * (now - self.since)


class Replay:
    """The state behind one simulated target; every method may be called from any thread.

    Names may be given with colons or underscores; labels select series and need not be complete.
    """

    def __init__(
        self,
        exposition: Exposition,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._source = exposition.source
        self._families = exposition.families
        self._monotonic = monotonic
        self._wall = wall
        self._lock = threading.Lock()
        now = monotonic()
        self._courses: dict[Series, _Course] = {
            series: _Course(series.value, 0.0, now) for family in self._families for series in family.series
        }
        names = [family.name for family in self._families]
        self._births = frozenset(f.name for f in self._families if created_base(f, names))

    def set_gauge(self, name: str, value: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Set the matching series of a gauge; raises UnknownSeriesError when none matches."""
        now = self._monotonic()
        with self._lock:
            for series in self._matching(name, ("gauge", "untyped"), labels):
                self._courses[series] = _Course(value, 0.0, now)

    def set_rate(self, name: str, per_second: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Let the matching series of a counter grow by so much a second, each.

        Raises UnknownSeriesError when none matches, ValueError on a negative rate.
        """
        _refuse_negative(name, per_second)
        now = self._monotonic()
        with self._lock:
            for series in self._matching(name, ("counter",), labels):
                self._bend(series, per_second, now)

    def observe(
        self, name: str, per_second: Mapping[float, float], labels: Mapping[str, str] = _NO_LABELS
    ) -> None:
        """Let a histogram or summary take observations: `{value: how many a second}`, an empty mapping stops it.

        Raises UnknownSeriesError when no child matches, ValueError on a negative rate.
        """
        for rate in per_second.values():
            _refuse_negative(name, rate)
        now = self._monotonic()
        with self._lock:
            for series in self._matching(name, ("histogram", "summary"), labels):
                if series.name.endswith("_sum"):
                    self._bend(series, sum(value * rate for value, rate in per_second.items()), now)
                elif series.name.endswith("_count"):
                    self._bend(series, sum(per_second.values()), now)
                elif series.name.endswith("_bucket"):
                    bound = float(series.label("le") or "inf")
                    self._bend(series, sum(rate for value, rate in per_second.items() if value <= bound), now)

    def set_all_rates(self, per_second: float) -> None:
        """Let every counter grow and every histogram take so many observations a second, spread as in the capture.

        A histogram that was captured empty observes zeros. Raises ValueError on a negative rate.
        """
        _refuse_negative("all counters", per_second)
        now = self._monotonic()
        with self._lock:
            for family in self._families:
                if family.kind == "counter":
                    for series in family.series:
                        self._bend(series, per_second, now)
                elif family.kind in ("histogram", "summary"):
                    self._spread(family, per_second, now)

    def restart(self) -> None:
        """What a scraper sees of a restarted process: counters and histograms at zero, new birth times, same rates."""
        now = self._monotonic()
        with self._lock:
            for family in self._families:
                for series in family.series:
                    course = self._courses[series]
                    if family.name in self._births or family.name == "process_start_time_seconds":
                        self._courses[series] = _Course(self._wall(), 0.0, now)
                    elif family.kind == "counter" or series.name != family.name:
                        self._courses[series] = replace(course, start=0.0, since=now)

    def families(self) -> tuple[Family, ...]:
        """Return everything at this instant."""
        with self._lock:
            now = self._monotonic()
            return tuple(
                replace(
                    family,
                    series=tuple(replace(s, value=self._courses[s].at(now)) for s in family.series),
                )
                for family in self._families
            )

    def _bend(self, series: Series, rate: float, now: float) -> None:
        self._courses[series] = _Course(self._courses[series].at(now), rate, now)

    def _spread(self, family: Family, per_second: float, now: float) -> None:
        counts = {_child(s): s.value for s in family.series if s.name.endswith("_count")}
        for series in family.series:
            count = counts.get(_child(series), 0.0)
            if series.name.endswith("_count"):
                share = 1.0
            elif series.name.endswith("_sum"):
                share = series.value / count if count else 0.0
            elif series.name.endswith("_bucket"):
                share = series.value / count if count else 1.0
            else:  # a summary's quantile
                continue
            self._bend(series, per_second * share, now)

    def _matching(self, name: str, kinds: tuple[str, ...], labels: Mapping[str, str]) -> Iterator[Series]:
        """Yield what name and labels select; the names of all are compared in one spelling."""
        wanted = name.replace(":", "_")
        families = [f for f in self._families if f.name.replace(":", "_") == wanted and f.kind in kinds]
        found = [s for f in families for s in f.series if labels.items() <= dict(s.labels).items()]
        if not found:
            raise UnknownSeriesError(self._unknown(name, kinds, labels, bool(families)))
        return iter(found)

    def _unknown(self, name: str, kinds: tuple[str, ...], labels: Mapping[str, str], named: bool) -> str:
        what = f"{self._source} has no {' or '.join(kinds)} {name}"
        if named:
            wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
            return f"{what} with {{{wanted}}}"
        near = difflib.get_close_matches(name, [f.name for f in self._families if f.kind in kinds], 3, 0.4)
        return f"{what}; did you mean {', '.join(near)}?" if near else what


def _child(series: Series) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in series.labels if pair[0] not in ("le", "quantile"))


def _refuse_negative(name: str, rate: float) -> None:
    if not rate >= 0:
        raise ValueError(f"{name}: a counter never falls: rate {rate}: use restart() to zero it")
