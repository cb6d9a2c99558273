"""The real programs that tests run, and what becomes of a test that lacks something."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from k3observe.drill import binaries
from k3observe.drill.binaries import Release


def program(name: str, release: Release = "3.5") -> Path:
    """The program of this set; where it is missing, the test ends as ``missing`` says."""
    try:
        return binaries.find(name, release).path
    except binaries.BinaryMissingError as error:
        missing(str(error))


def missing(message: str) -> NoReturn:
    """A build fails without what it needs; a person without it still gets the rest of the tests."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
