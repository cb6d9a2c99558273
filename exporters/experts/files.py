"""Reading a file that somebody else writes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_REMEDIES = {
    errno.ENOENT: "check the path, and that it is mounted where the sidecar runs in a container",
    errno.ENOTDIR: "name a directory",
    errno.EISDIR: "name a file",
    errno.EACCES: "give the sidecar's user the right to read it",
    errno.EPERM: "give the sidecar's user the right to read it",
    errno.ELOOP: "put the file itself there, not a symbolic link",
    errno.EMFILE: "raise the limit of open files",
    errno.ENFILE: "raise the limit of open files",
}


class UnreadableError(OSError):
    """Input that cannot be read; the text says which, why, and what to do."""


def why(error: OSError, missing: str = "") -> str:
    """Say why something cannot be read and what to do; ``missing`` is what to do where it is not there."""
    remedy = missing if missing and error.errno == errno.ENOENT else _REMEDIES.get(error.errno or 0, "check the path")
    return f"cannot be read: {error.strerror or error}: {remedy}"


def unreadable(error: OSError, path: str | Path, missing: str = "") -> UnreadableError:
    """Return an error of the system as one that says what to do; one that says it already stays."""
    return error if isinstance(error, UnreadableError) else UnreadableError(f"{path}: {why(error, missing)}")


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises UnreadableError, also where it is larger."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError(f"{path}: is not a regular file: name a file")
            if status.st_size > max_bytes:
                raise UnreadableError(f"{path}: is too large: {status.st_size} bytes: at most {max_bytes} are read")
            return file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(error, path) from None
