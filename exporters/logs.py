"""Structured log lines on standard error, logfmt or JSON, one line a record whatever the message holds."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from typing import Literal

LEVELS = ("debug", "info", "warn", "error")
FORMATS = ("logfmt", "json")
Format = Literal["logfmt", "json"]

ROOT = "k3observe"
WAIT_MILLISECONDS = 100
"""For room on standard error, once; then lines are dropped until there is some."""


def _fields(record: logging.LogRecord) -> dict[str, str]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields = {
        "time": f"{seconds}.{int(record.msecs):03d}Z",
        "level": "warn" if record.levelno == logging.WARNING else record.levelname.lower(),
    }
    _, _, component = record.name.partition(f"{ROOT}.")
    if component:
        fields["component"] = component
    fields["msg"] = record.getMessage()
    if record.exc_info and record.exc_info[1]:
        fields["err"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        fields["stack"] = logging.Formatter().formatException(record.exc_info)
    return fields


class LogfmtFormatter(logging.Formatter):
    """``time=... level=info component=gpu msg="..."``; values with blanks, quotes or control characters are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return " ".join(f"{key}={_logfmt_value(value)}" for key, value in _fields(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object a line with the same fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(_fields(record))


def _logfmt_value(value: str) -> str:
    plain = value and value.isprintable() and not any(char in value for char in ' ="')
    return value if plain else json.dumps(value, ensure_ascii=not value.isprintable())


class StderrHandler(logging.Handler):
    """Writes to standard error and never waits long for it.

    Behind a pipe that nobody empties, as with a log collector that hangs, every thread that logs would stop, scrapes
    and all. Lines that find no room are dropped, and their number is told before the next that does.
    """

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._dropped, self._cut = 0, False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        if self._dropped:
            note = logging.LogRecord(
                ROOT, logging.WARNING, "", 0, "%d log lines were dropped: standard error took none", (self._dropped,),
                None)
            if not self._write(note):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write(record):
            self._dropped = 1

    def _write(self, record: logging.LogRecord) -> bool:
        """Return whether the line found room; one that nobody can hear any more did."""
        text = ("\n" if self._cut else "") + self.format(record) + "\n"
        left = memoryview(text.encode(self._encoding, "backslashreplace"))
        size = len(left)
        while left:
            # A pipe that is ready takes so much at once.
            if not self._room.poll(0 if self._dropped else WAIT_MILLISECONDS):
                self._cut = self._cut or len(left) < size
                return False
            try:
                left = left[os.write(self._descriptor, left[: select.PIPE_BUF]) :]
            except BlockingIOError:  # others share it, and were quicker
                self._cut = self._cut or len(left) < size
                return False
            except OSError:
                break
        self._cut = False
        return True


def configure(level: str, form: str) -> logging.Logger:
    """Send the program's log to standard error and return its logger."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel({"warn": "WARNING"}.get(level, level.upper()))
    return logger
