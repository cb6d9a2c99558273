"""Basic authentication with bcrypt hashes, as Prometheus's exporter-toolkit has it; loads bcrypt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial

import bcrypt

_HASH = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
MOST_COST = 15
"""Some seconds a login; each step doubles them, and a scrape waits for its first one."""
_CACHE = 256
_MAX_PASSWORD = 72
"""bcrypt looks at no more bytes; Go's compares longer ones by these, the Python package refuses them."""


# By user, hash and password: a file that is read again, with another user in it, forgets no scraper.
_KEY = os.urandom(32)
_LOCK = threading.Lock()
_VERDICTS: OrderedDict[bytes, bool] = OrderedDict()


class BasicAuth:
    """Judges Authorization headers.

    Verified and refused passwords are remembered (as a keyed hash), so that a scraper costs one bcrypt
    computation and not one a scrape. An unknown user costs as much time as a wrong password.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {name.encode(): password_hash.encode() for name, password_hash in users.items()}
        cost = max((int(value.split(b"$")[2]) for value in self._users.values()), default=10)
        self._nobody = b"$2b$%02d$" % cost + b"." * 53  # no password has this hash

    def __call__(self, header: str) -> bool | Callable[[], bool]:
        """Return the verdict, or the computation that leads to it."""
        credentials = _credentials(header)
        if credentials is None:
            return False
        user, password = credentials
        known = self._users.get(user, self._nobody)
        key = hmac.digest(_KEY, b"%d:%s%s%s" % (len(user), user, known, password), hashlib.sha256)
        with _LOCK:
            verdict = _VERDICTS.get(key)
        return partial(self._verify, user, password, key) if verdict is None else verdict

    def _verify(self, user: bytes, password: bytes, key: bytes) -> bool:
        with _LOCK:
            if key in _VERDICTS:
                return _VERDICTS[key]
        known = self._users.get(user)
        try:
            matches = bcrypt.checkpw(password[:_MAX_PASSWORD], known or self._nobody)
        except ValueError:  # a NUL in the password
            matches = False
        verdict = matches and known is not None
        with _LOCK:
            _VERDICTS[key] = verdict
            while len(_VERDICTS) > _CACHE:
                # Guesses must not push out the scraper's verified password.
                refused = next((k for k, allowed in _VERDICTS.items() if not allowed), None)
                _VERDICTS.pop(refused) if refused else _VERDICTS.popitem(last=False)
        return verdict


def cost_of(text: str) -> int | None:
    """Return the cost of a bcrypt hash, the logarithm of its rounds; None when it is no hash."""
    match = _HASH.fullmatch(text)
    return int(match[1]) if match else None


def _credentials(header: str) -> tuple[bytes, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None
