"""Threads for answers that take time: one a lane, so that a hung one holds up no other kind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]
MAX_WAITING = 512
FEW = 16
"""Jobs that may wait in a lane whose jobs cost much and come from strangers."""


class Lanes:
    """Runs jobs in order, each lane on its own daemon thread that is started with the lane's first job."""

    def __init__(self) -> None:
        self._queues: dict[str, queue.Queue[Job]] = {}

    def submit(self, lane: str, job: Job, waiting: int = MAX_WAITING) -> bool:
        """Queue a job; False when ``waiting`` jobs wait in the lane already, or the system gives it no thread."""
        jobs = self._queues.get(lane)
        if jobs is None:
            jobs = queue.Queue()
            try:
                threading.Thread(target=self._run, args=(jobs,), name=f"web-{lane}", daemon=True).start()
            except RuntimeError:
                return False
            self._queues[lane] = jobs
        if jobs.qsize() >= waiting:
            return False
        jobs.put(job)
        return True

    def _run(self, jobs: queue.Queue[Job]) -> None:
        while True:
            jobs.get()()
