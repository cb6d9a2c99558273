"""Run ``npu-smi`` so that nothing it does can hurt: bounded in time and output, one at a time, killed as a group.

No shell, fixed arguments, ``LC_ALL=C``. A driver call may sit in the kernel where no signal reaches it: such a call is
left behind, and no second one is started beside it until it has ended. When the exporter itself is killed, the call is
killed by the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from typing import IO, NamedTuple

MAX_OUTPUT = 1 << 20
MAX_STDERR = 1 << 14
_POLL = 0.05
_GRACE = 0.5
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

NOT_FOUND, NOT_EXECUTABLE = "not_found", "not_executable"
TIMEOUT, HUNG, FLOOD, STOPPED = "timeout", "hung", "too_much_output", "stopped"


class Output(NamedTuple):
    """A call that ended by itself; ``status`` is negative for a signal, ``stdout`` has U+FFFD for what is no UTF-8."""

    stdout: str
    stderr: str
    status: int


class RunError(Exception):
    """A call that gave nothing: ``reason`` is one word for a label, the message says what helps."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NpuSmi:
    """The tool at ``path``: an absolute path, or a name that is looked up on PATH at each call."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path, self.timeout = path, timeout
        self._running: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._starting = threading.Lock()

    def run(self, *args: str) -> Output:
        """Return what ``npu-smi ARGS`` printed.

        Raises:
            RunError: it is missing, cannot be executed, ran past the timeout, printed too much, or an earlier call
                still hangs.
        """
        if self._running is not None and self._running.poll() is None:
            raise RunError(HUNG, f"an earlier {self.path} (pid {self._running.pid}) cannot be killed: "
                                 "the driver hangs; look at dmesg, reset the NPU or restart the host")
        program = self.path if os.path.isabs(self.path) else shutil.which(self.path)
        if program is None:
            raise RunError(NOT_FOUND, f"{self.path} is not on PATH: name it with --npu.smi-path")
        process, lifeline = self._start([program, *args])
        try:
            return self._read(process)
        finally:
            self._end(process)
            os.close(lifeline)

    def stop(self) -> None:
        """End a call that runs, from another thread; later calls end at once too."""
        self._stopped.set()
        # A call that is just being started would not be seen, and would outlive this process.
        started = self._starting.acquire(timeout=_GRACE)
        process = self._running
        if started:
            self._starting.release()
        if process is not None and process.returncode is None:
            self._kill(process)

    def _start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
        """Return the process and a descriptor with which it ends: see ``_end_with_us``."""
        try:
            reader, writer = os.pipe()
            try:
                with self._starting:
                    self._check(time.monotonic() + self.timeout)
                    self._running = process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                        env={**os.environ, "LC_ALL": "C", "LANG": "C"}, start_new_session=True, pass_fds=(reader,))
                    _end_with_us(process, reader)
                return process, writer
            except BaseException:
                os.close(writer)
                raise
            finally:
                os.close(reader)
        except FileNotFoundError as error:
            raise RunError(NOT_FOUND, f"{command[0]} does not exist: name it with --npu.smi-path") from error
        except OSError as error:
            helps = "raise the limits of files, processes and memory" if error.errno in _OUT_OF else \
                "check its mode and architecture"
            raise RunError(NOT_EXECUTABLE, f"{command[0]}: {error.strerror}: {helps}") from error

    def _read(self, process: subprocess.Popen[bytes]) -> Output:
        deadline = time.monotonic() + self.timeout
        stdout, stderr = _pipes(process)
        texts: dict[IO[bytes], bytearray] = {stdout: bytearray(), stderr: bytearray()}
        ended: float | None = None
        with selectors.DefaultSelector() as selector:
            for pipe in texts:
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, pipe)
            while selector.get_map():
                ready = selector.select(_POLL)
                for key, _ in ready:
                    pipe = key.data
                    if chunk := os.read(pipe.fileno(), 1 << 16):
                        texts[pipe] += chunk
                    else:
                        selector.unregister(pipe)
                del texts[stderr][MAX_STDERR:]
                if len(texts[stdout]) > MAX_OUTPUT:
                    raise RunError(FLOOD, f"{self.path} printed more than {MAX_OUTPUT} bytes: is it npu-smi?")
                now = time.monotonic()
                if ended is None and _has_ended(process):
                    ended = now
                # A grandchild that keeps the pipe open is not waited for: its parent has said all.
                if ended is not None and (not ready or now > ended + _GRACE):
                    break
                self._check(deadline)
        while not _has_ended(process):
            self._check(deadline)
            time.sleep(_POLL / 5)
        self._kill(process)
        return Output(texts[stdout].decode("utf-8", "replace"), texts[stderr].decode("utf-8", "replace"),
                      process.wait())

    def _check(self, deadline: float) -> None:
        if self._stopped.is_set():
            raise RunError(STOPPED, "the exporter ends")
        if time.monotonic() > deadline:
            raise RunError(TIMEOUT, f"{self.path} did not end within {self.timeout:g} s: the driver is busy or hangs; "
                                    "look at dmesg, or raise --npu.timeout")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill what is left of the group and close the pipes; a call that does not die stays ``_running``."""
        if process.returncode is None:
            self._kill(process)
        for pipe in _pipes(process):
            pipe.close()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return
        self._running = None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        # The group may be gone, or hold what a set-user-id program started: both leave nothing to do here.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def _end_with_us(process: subprocess.Popen[bytes], reader: int) -> None:
    """Have the kernel kill the process's group when this process ends, even by SIGKILL.

    The group inherits the reading end of a pipe, and we alone have the writing one, which closes with us: the kernel
    then sends the signal that the reading end asks for. Unlike PR_SET_PDEATHSIG this needs no code between fork and
    exec, does not depend on the thread that forked, and reaches grandchildren.
    """
    with contextlib.suppress(OSError):  # a sandbox may lack it; then a killed exporter leaves its call behind
        fcntl.fcntl(reader, fcntl.F_SETOWN, -process.pid)
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdout, process.stderr


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process is over; it is not reaped, so that its group id is still its own when it is killed."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
