"""How an engine writes a log that the sidecar can read, beside the one on its standard output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from k3observe.config.model import Service

LOG_DIR = "/var/log/k3observe"
VARIABLES = {
    "vllm": "VLLM_LOGGING_CONFIG_PATH", "vllm-ascend": "VLLM_LOGGING_CONFIG_PATH",
    "sglang": "SGLANG_LOGGING_CONFIG_PATH",
}  # fmt: skip
"""The variable by which an engine takes the configuration of Python's logging."""

MAX_BYTES, BACKUPS = 1 << 20, 1
_LOGGERS = {
    # the lines on experts come from these modules; the rest stays on standard output
    "vllm": ("vllm", "vllm.distributed.eplb"),
    "vllm-ascend": ("vllm", "vllm"),
    "sglang": ("", ""),
}


def needed(service: Service) -> bool:
    """Whether the sidecar reads a log that the engine must be told to write."""
    experts = service.sidecar.experts
    reads = "experts" in service.sidecar.collect and experts.source == "log" and experts.path is None
    return reads and service.engine.name in VARIABLES


def dict_config(engine: str) -> dict[str, Any]:
    """The configuration: standard output as before, and a file for each process that logs about experts.

    API server, engine cores and workers are processes that all read this, and Python's rotation is not safe over
    processes: ``tempfile.mktemp`` gives each its own path, in the guise of a filter that nobody uses, as only filters
    and formatters may be made by a function. ``delay`` opens the file with its first line. vLLM and SGLang spawn their
    processes, which therefore configure logging anew.
    """
    general, experts = _LOGGERS[engine]
    loggers: dict[str, Any] = {
        general: {"handlers": ["stdout"], "level": "INFO", "propagate": False},
        "uvicorn": {"handlers": ["stdout"], "level": "INFO", "propagate": False},
    }
    if experts == general:
        loggers[general]["handlers"] = ["stdout", "file"]
    else:
        loggers[experts] = {"handlers": ["file"], "propagate": True}
    if engine == "vllm-ascend":
        loggers["vllm_ascend"] = loggers[general]
    root = loggers.pop("", None)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "format": "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s",
                "datefmt": "%m-%d %H:%M:%S",
            },
        },
        "filters": {
            "path": {"()": "tempfile.mktemp", "dir": LOG_DIR, "prefix": f"{engine}-", "suffix": ".log"},
        },
        "handlers": {
            "stdout": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "line"},
            "file": {
                "class": "logging.handlers.RotatingFileHandler", "filename": "cfg://filters.path", "delay": True,
                "maxBytes": MAX_BYTES, "backupCount": BACKUPS, "formatter": "line",
            },
        },
        **({"root": {key: value for key, value in root.items() if key != "propagate"}} if root else {}),
        "loggers": loggers,
    }  # fmt: skip


def text(engine: str) -> str:
    """The configuration as a file."""
    return json.dumps(dict_config(engine), indent=1) + "\n"


def files(services: Iterable[Service], folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files that engines outside of Kubernetes are started with."""
    for engine in sorted({service.engine.name for service in services if needed(service)}):
        yield f"{folder}/logging-{engine}.json", text(engine).encode()
