"""Tokens and signing secrets: read from their files for each send, so that a rotation needs no restart."""

from __future__ import annotations

import re
from pathlib import Path

from k3observe.notify.robot import Credentials, Platform

_MAX_BYTES = 4096
_TOKEN = re.compile(r"[A-Za-z0-9._~=\-]{1,512}")
_SECRET = re.compile(r"[!-~]{1,512}")


class SecretError(Exception):
    """A secret's file cannot be used; the text names the file and what to do, and never shows what is in it."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"{file} {problem}")
        self.file = file


def read(platform: Platform, token_file: Path, secret_file: Path | None) -> Credentials:
    """Read a robot's token and, where it has one, its signing secret; raises SecretError."""
    token = platform.token(_text(token_file))
    if not _TOKEN.fullmatch(token):
        problem = f"holds neither a token nor a webhook URL of {platform.name}: copy it from the robot's settings"
        raise SecretError(token_file, problem)
    if secret_file is None:
        return Credentials(token, "")
    secret = _text(secret_file)
    if not _SECRET.fullmatch(secret):
        raise SecretError(secret_file, "holds no signing secret: it should be one line without spaces")
    return Credentials(token, secret)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SecretError(path, f"cannot be read: {error.strerror}: create it, readable by this user alone") from None
    if len(raw) > _MAX_BYTES:
        raise SecretError(path, f"is larger than {_MAX_BYTES} bytes: it should hold one line")
    try:
        return raw.decode("ascii").strip()
    except UnicodeDecodeError:
        raise SecretError(path, "holds more than ASCII: it should hold one line") from None
