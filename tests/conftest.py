"""Fixtures that every room uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real samples beside the project; where it is missing, tests that need it are skipped."""
    folder = Path(os.environ.get("K3OBSERVE_SHARED", ROOT.parent / "shared"))
    if not (folder / "samples").is_dir():
        pytest.skip(f"no samples in {folder}: set K3OBSERVE_SHARED to the folder that holds samples/")
    return folder
