"""The part in the engine's thread: sums the load window on the device and hands a copy to the writer's thread.

What it must not do decides how it is built. No collective: ranks publish alone, the sidecar adds them up. No wait for
the device: sum and copy are queued on the engine's stream into pinned memory, and the writer waits for the event. No
change of the balancer's state: the window is only read, after ``step``.

The window, not the pass: ``expert_load_window`` is a ring of the last recorded passes, so that the sum of the slots
since the last publication holds every one of them, while a single pass is noise.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from k3observe.exporters.vllm_plugin.fileformat import MAX_REARRANGEMENTS, Rearrangement
from k3observe.exporters.vllm_plugin.settings import Settings
from k3observe.exporters.vllm_plugin.writer import Interval, Job, Writer

log = logging.getLogger("vllm.plugins.k3observe_experts")

QUEUED = 2
BUFFERS = QUEUED + 2
"""Host buffers in rotation: those queued, the one being written and the one being filled."""

FAILURES_IN_A_ROW = 3
FAILURES = 20
_LAYER = re.compile(r"\blayers\.(\d+)\b")


class Publisher:
    """One for each process. ``publish``, ``moved`` and ``rearranged`` may raise; the caller passes that to ``failed``.

    ``on`` turns False for good after repeated failures. ``steps`` are the steps with real requests since the last
    publication, and ``moving`` is True while experts move in the background: both are read in the hot path.
    """

    def __init__(self, get_ep_group: Callable[[], Any], settings: Settings) -> None:
        self.on = True
        self.steps = 0
        self.moving = False
        self._get_ep_group = get_ep_group
        self._settings = settings
        self._failures = self._failures_in_a_row = 0
        self._restart()

    def _restart(self) -> None:
        """Forget all that belongs to another process, state or group; the next publication only sets the marks."""
        self._pid = os.getpid()
        self._lock = threading.Lock()  # after a fork the parent's may be held for ever
        self._state: Callable[[], Any] = lambda: None
        self._group: tuple[int, int] = (0, 0)
        self._writer: Writer | None = None
        self._slots: dict[Any, _Slot] = {}
        self._cycle = self._sequence = self._dropped = 0
        self._last_step = -1
        self._published = time.time()
        self._rearrangements: list[Rearrangement] = []
        self._began = 0.0

    def publish(self, state: Any) -> None:
        """Queue the counts since the last publication, without waiting for the device or the writer."""
        self._follow(state)
        step = state.expert_rearrangement_step
        # Seen on every rank at the same steps, whether or not this one can publish now: the cycles stay equal.
        if step <= self._last_step:
            self._cycle += 1
        self._last_step = step
        window = state.expert_load_window_size
        if self._settings.every >= window:
            self._off(f"K3OBSERVE_EXPERTS_STEPS is {self._settings.every}: it must be below EPLB's window_size, "
                      f"which is {window}, or counts would be lost")
            return
        if self.steps >= window:
            # The ring has gone round since the last publication: start again rather than miscount.
            self._slots.clear()
        writer = self._writer
        if writer is None or writer.full():
            self._dropped += 1
            return
        try:
            intervals, event = self._intervals(state)
        except Exception:
            self._slots.clear()  # some marks may have moved: start again rather than miscount
            raise
        steps, self.steps = self.steps, 0
        now = time.time()
        seconds, self._published = now - self._published, now
        if intervals:
            self._sequence += 1
            writer.put(Job(
                sequence=self._sequence, cycle=self._cycle, step=step, time=now, seconds=seconds,
                dropped=self._dropped, steps=steps, rearrangements=tuple(self._rearrangements),
                settled_in_step=not step and not getattr(state, "is_async", False), intervals=intervals, event=event))

    def rearranged(self, state: Any, time_: float, seconds: float) -> None:
        """Note a rearrangement; where experts go on moving in the background, its duration follows."""
        self.moving = any(getattr(model, "rebalanced", False) for model in state.model_states.values())
        self._began = time.monotonic() - seconds
        number = self._rearrangements[-1].number + 1 if self._rearrangements else 1
        event = Rearrangement(number, time_, None if self.moving else seconds)
        self._rearrangements = [*self._rearrangements, event][-MAX_REARRANGEMENTS:]

    def moved(self, state: Any) -> None:
        """Note the duration once no model has experts moving."""
        if not any(getattr(model, "rebalanced", False) for model in state.model_states.values()):
            self.moving = False
            if self._rearrangements:
                last = self._rearrangements[-1]
                self._rearrangements[-1] = Rearrangement(last.number, last.time, time.monotonic() - self._began)

    def failed(self, error: Exception) -> None:
        """Count a failure of either thread, log it, and switch off when they repeat."""
        with self._lock:
            self._failures += 1
            self._failures_in_a_row += 1
            off = self._failures_in_a_row >= FAILURES_IN_A_ROW or self._failures >= FAILURES
        reason = f"{type(error).__name__}: {error}"
        if off:
            self._off(reason)
        else:
            log.warning("expert loads could not be published: %s", reason)

    def written(self) -> None:
        """Note a success of the writer."""
        with self._lock:
            self._failures_in_a_row = 0

    def _off(self, reason: str) -> None:
        if self.on:
            self.on = False
            log.warning("expert loads are no longer published, the engine is not affected: %s", reason)

    def _follow(self, state: Any) -> None:
        """Start the writer at first, after a fork, for another state, and when elastic EP made another group."""
        group = self._get_ep_group()
        place = (group.rank_in_group, group.world_size)
        if self._pid == os.getpid() and self._state() is state and self._group == place:
            return
        if self._writer is not None and self._pid == os.getpid():
            self._writer.stop()
        self._restart()
        self._state, self._group = weakref.ref(state), place
        pp_rank, pp_size = _pipeline()
        self._writer = Writer(
            self, self._settings, run=secrets.token_hex(8), engine_version=_version(),
            ep_rank=place[0], ep_size=place[1], pp_rank=pp_rank, pp_size=pp_size)

    def _intervals(self, state: Any) -> tuple[list[Interval], Any]:
        """Return the summed counts of each model on their way to the host, and the event that says they are there."""
        import torch  # the engine has loaded it long ago

        intervals: list[Interval] = []
        names: set[str] = set()
        on_device = False
        end = state.expert_load_window_step
        with torch.inference_mode():
            for key, model_state in state.model_states.items():
                ring = model_state.expert_load_window
                on_device = ring.is_cuda
                if on_device and torch.cuda.is_current_stream_capturing():
                    raise RuntimeError("EplbState.step was called while a CUDA graph is captured")
                if not on_device and ring.device.type != "cpu":
                    raise RuntimeError(f"device {ring.device.type} is not supported")
                slot = self._slots.get(key)
                shape = ring.shape[1:]
                if slot is None or slot.sum.shape != shape:
                    # At first, or when elastic EP changed the number of experts: what lies in the ring may hold
                    # warm-up passes or the old experts.
                    self._slots[key] = _Slot(torch, ring, model_state, end, self._settings.detail == "expert")
                    continue
                name = str(model_state.model_name)
                if name in names:
                    name += " (draft)"  # before 0.33.0 a drafter of the same checkpoint has the same name
                names.add(name)
                intervals.append(slot.take(torch, ring, model_state, end, name))
            event = None
            if on_device and intervals:
                event = torch.cuda.Event(blocking=True)
                event.record()
        return intervals, event


class _Slot:
    """One model's place in the ring, and its buffers on the device and the host."""

    def __init__(self, torch: Any, ring: Any, model_state: Any, mark: int, mapped: bool) -> None:
        def host(like: Any) -> Any:
            return torch.zeros(like.shape, dtype=like.dtype, pin_memory=ring.is_cuda)

        self.sum = torch.zeros(ring.shape[1:], dtype=torch.int32, device=ring.device)
        self._mark, self._turn = mark, 0
        self._counts = [host(self.sum) for _ in range(BUFFERS)]
        placement = model_state.physical_to_logical_map
        self._maps = [host(placement) for _ in range(BUFFERS)] if mapped and placement.shape == self.sum.shape else []
        self._layers = _layers(model_state, len(self.sum))
        # The map at the interval's start is the one its passes were routed by.
        self._start_map = host(placement).copy_(placement, non_blocking=True) if self._maps else None

    def take(self, torch: Any, ring: Any, model_state: Any, end: int, name: str) -> Interval:
        """Queue sum and copy of the passes since the mark. All of the ring's slots were not written since."""
        start, self._mark = self._mark, end
        if start <= end:
            torch.sum(ring[start:end], dim=0, dtype=torch.int32, out=self.sum)
        else:
            torch.sum(ring[start:], dim=0, dtype=torch.int32, out=self.sum)
            if end:
                self.sum += ring[:end].sum(dim=0, dtype=torch.int32)
        counts = self._counts[self._turn]
        counts.copy_(self.sum, non_blocking=True)
        placement = None
        if self._maps:
            placement = self._maps[self._turn]
            placement.copy_(model_state.physical_to_logical_map, non_blocking=True)
        self._turn = (self._turn + 1) % BUFFERS
        first, self._start_map = self._start_map, None
        return Interval(name, (end - start) % len(ring), counts, placement, first, self._layers)


def _layers(model_state: Any, rows: int) -> tuple[int, ...]:
    """Return the model's own numbers of its MoE layers, by the modules' names; empty where they do not tell."""
    names = [str(getattr(layer, "layer_name", "")) for layer in getattr(model_state.model, "moe_layers", ())]
    numbers = tuple(int(match[1]) for name in names if (match := _LAYER.search(name)))
    return numbers if len(set(numbers)) == rows == len(names) else ()


def _pipeline() -> tuple[int, int]:
    """Return rank and size of the pipeline-parallel group; (0, 1) where there is none."""
    parallel = sys.modules.get("vllm.distributed.parallel_state")
    group = getattr(parallel, "_PP", None)
    return (group.rank_in_group, group.world_size) if group is not None else (0, 1)


def _version() -> str:
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))
