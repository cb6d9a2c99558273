"""Threads for answers that take time: one a lane, so that a hung one holds up no other kind."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]
MAX_WAITING = 512


class Lanes:
    """Runs jobs in order, each lane on its own daemon thread that is started with the lane's first job."""

    def __init__(self) -> None:
        self._queues: dict[str, queue.Queue[Job]] = {}

    def submit(self, lane: str, job: Job) -> bool:
        """Queue a job; False when the lane is full, which means it hangs."""
        if lane not in self._queues:
            self._queues[lane] = queue.Queue(MAX_WAITING)
            threading.Thread(target=self._run, args=(lane,), name=f"web-{lane}", daemon=True).start()
        try:
            self._queues[lane].put_nowait(job)
        except queue.Full:
            return False
        return True

    def _run(self, lane: str) -> None:
        while True:
            self._queues[lane].get()()
