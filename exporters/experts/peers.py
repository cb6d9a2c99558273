"""The windows of the other nodes of an expert-parallel group, read from their sidecars and added to one's own.

A node alone sees only what its own ranks sent: balances of nodes cannot be averaged, counts can be added.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts import counts
from k3observe.exporters.experts.loads import ExpertLoads
from k3observe.exporters.experts.merge import merge
from k3observe.exporters.experts.pages import Fetcher, PageError
from k3observe.exporters.fetch import endpoint

PATH = "/experts/v1/window"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The last good document of a peer and its time by the monotonic clock, and what was wrong with the last answer."""

    at: float
    document: counts.Document | None
    problem: str


class Peers:
    """Reads the windows of ``urls`` every ``seconds``, each in a thread of its own, so that none delays another."""

    reasons = ("unreachable", "invalid")

    def __init__(self, urls: Iterable[str], fetcher: Fetcher, seconds: float, instance: str) -> None:
        self._urls = tuple(dict.fromkeys(map(window_url, urls)))
        self._fetcher, self._seconds, self._instance = fetcher, seconds, instance
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}

    def start(self, status: SourceStatus, log: logging.Logger) -> None:
        """Start the reading threads."""
        for index, url in enumerate(self._urls):
            threading.Thread(
                target=self._run, args=(url, status, log), name=f"experts-peer-{index}", daemon=True).start()

    def stop(self) -> None:
        """Ask the threads to end."""
        self._stop.set()

    @property
    def tried(self) -> bool:
        """Whether every peer was asked once."""
        return len(self._answers) == len(self._urls)

    def windows(self) -> list[tuple[ExpertLoads, ...]]:
        """Return the windows of the peers, each sidecar's once and never one's own.

        A window stays for three intervals when its peer fails to answer: one lost packet is no lost node.
        """
        oldest = time.monotonic() - 3 * self._seconds - self._fetcher.seconds
        with self._lock:
            answers = list(self._answers.values())
        documents = {
            answer.document.instance: answer.document
            for answer in answers if answer.document is not None and answer.at >= oldest
        }
        return [document.loads for instance, document in documents.items() if instance != self._instance]

    def _run(self, url: str, status: SourceStatus, log: logging.Logger) -> None:
        said: str | None = None
        while not self._stop.is_set():
            began = time.monotonic()
            problem, document = "", None
            try:
                text = self._fetcher.get(url)
                document = counts.parse(text, now=time.time())
                if not document.instance or document.kind != "window":
                    raise counts.CountsError("is no window of a sidecar: instance or kind is missing")
            except PageError as error:
                problem = str(error)
                status.failed("unreachable")
            except Exception as error:  # CountsError; with any other, too, the thread must live on
                problem = f"{url}: {error}"
                status.failed("invalid")
            with self._lock:
                before = self._answers.get(url)
                if not problem:
                    answer = _Answer(time.monotonic(), document, "")
                else:
                    answer = replace(before, problem=problem) if before else _Answer(began, None, problem)
                self._answers[url] = answer
                good = self.tried and not any(known.problem for known in self._answers.values())
            if good:
                status.succeeded(time.monotonic() - began)
            if problem and problem != said:
                log.warning("a peer is missing, its ranks will not be counted: %s", problem)
            elif said and not problem:
                log.info("the peer %s is back", url)
            said = problem
            self._stop.wait(max(0.0, self._seconds - (time.monotonic() - began)))


def window_url(url: str) -> str:
    """Return the URL of a peer's window: ``http://node-2:19303`` is enough. Raises ValueError."""
    if not urlsplit(url).path.strip("/"):
        url = url.rstrip("/") + PATH
    return endpoint(url).url


def add_up(windows: Sequence[Sequence[ExpertLoads]]) -> tuple[list[ExpertLoads], list[str]]:
    """Return the sum of windows by model, phase and scope, and what did not fit and was left out.

    ``ranks_seen`` adds up where the windows tell it; else it is the number of ranks that have counts.
    """
    groups: dict[tuple[str, str, str], list[ExpertLoads]] = {}
    for window in windows:
        for loads in window:
            if loads.counts:
                groups.setdefault((loads.model, loads.phase, loads.scope), []).append(loads)
    sums, problems = [], []
    for (model, phase, scope), parts in groups.items():
        total, fitting = parts[0], [parts[0]]
        try:
            total, fitting = merge(parts), parts
        except ValueError:
            for part in parts[1:]:
                try:
                    total = merge([*fitting, part])
                except ValueError as error:
                    problems.append(f"a window of {model!r}, {phase}, {scope} does not fit: {error}")
                else:
                    fitting.append(part)
        seen = [part.ranks_seen for part in fitting if part.ranks_seen is not None]
        expected = [part.ranks_expected for part in fitting if part.ranks_expected is not None]
        known = len(seen) == len(fitting)
        sums.append(replace(
            total, ranks_expected=max(expected, default=None),
            ranks_seen=sum(seen) if known else len(total.counts[0]) if scope == "rank" else None))
    return sums, problems
