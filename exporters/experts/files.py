"""Reading a file that somebody else writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also where it is larger."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        if status.st_size > max_bytes:
            raise OSError(f"{path} has {status.st_size} bytes: at most {max_bytes} are read")
        return file.read(max_bytes + 1)
