"""The source ``plugin``: a directory in which each rank of the engine keeps one file of its counts.

Files are written by the plugin in the engine's workers (``docs/plugin-format.md``). Each is untrusted, and each alone
means nothing: a rank counts what its own router sent to every rank, so that loads are sums over the files of all.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts.plugin_files import Directory
from k3observe.exporters.experts.plugin_ranks import Engines
from k3observe.exporters.experts.source import Sink

POLL_SECONDS = 1.0
"""Looking costs one ``stat`` a file; only files that changed are read."""


class PluginSource:
    """Hands over the loads of each pass that all living ranks have published.

    It looks into ``directory`` every second, or more often where ``poll_seconds`` is less.

    It succeeds with each new publication, also of an interval in which the engine did not count; an engine that is
    idle publishes nothing and is no failure. ``absent``: no file is there. ``stale``: no writer is alive. ``invalid``:
    a file is damaged, or does not fit the others.
    """

    name = "plugin"
    reasons = ("absent", "stale", "invalid")

    def __init__(self, directory: Path, poll_seconds: float) -> None:
        self._directory, self._poll_seconds = Directory(directory), min(poll_seconds, POLL_SECONDS)
        self._engines = Engines()
        self._stop = threading.Event()
        self._said: set[str] = set()

    def start(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        """Start looking in a daemon thread."""
        threading.Thread(target=self._run, args=(sink, status, log), name="experts-plugin", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def _run(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        while not self._stop.is_set():
            self.look(sink, status, log)
            self._stop.wait(self._poll_seconds)

    def look(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        """Read what changed once, and hand over what is complete."""
        began, now = time.monotonic(), time.time()
        problems: set[str] = set()
        try:
            found = self._directory.read(now)
        except OSError as error:
            status.failed("absent", time.monotonic() - began)
            self._tell(log, {str(error)})
            return
        problems.update(found.problems)
        events, news, misfits = self._engines.take(found.publications, found.alive, now)
        problems.update(misfits)
        for event in events:
            sink(event)
        seconds = time.monotonic() - began
        if problems - self._said:
            status.failed("invalid", seconds, down=False)
        if news:
            status.succeeded(seconds)
        elif not found.files:
            status.failed("absent", seconds)
            problems.add("no file of expert counts is there: is EPLB on, the plugin installed in the engine's image "
                         "and K3OBSERVE_EXPERTS_DIR set to this directory?")
        elif not found.alive:
            status.failed("stale", seconds)
            problems.add("no rank keeps its file of expert counts alive: the engine has ended, or the plugin has "
                         "switched itself off, which the engine's log tells")
        self._tell(log, problems)

    def _tell(self, log: logging.Logger, problems: set[str]) -> None:
        for problem in sorted(problems - self._said):
            log.warning("%s", problem)
        self._said = problems
