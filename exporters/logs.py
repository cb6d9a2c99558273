"""Structured log lines on standard error, logfmt or JSON, one line a record whatever the message holds."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

LEVELS = ("debug", "info", "warn", "error")
FORMATS = ("logfmt", "json")
Format = Literal["logfmt", "json"]

ROOT = "k3observe"


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


def configure(level: str, form: str) -> logging.Logger:
    """Send the program's log to standard error and return its logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel({"warn": "WARNING"}.get(level, level.upper()))
    return logger
