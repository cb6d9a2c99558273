"""Fixtures that every room uses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from k3observe.drill.binaries import Release
from tests.programs import missing, program

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real samples beside the project; where it is missing, tests that need it are skipped."""
    folder = Path(os.environ.get("K3OBSERVE_SHARED", ROOT.parent / "shared"))
    if not (folder / "samples").is_dir():
        pytest.skip(f"no samples in {folder}: set K3OBSERVE_SHARED to the folder that holds samples/")
    return folder


@pytest.fixture(scope="session", params=["3.5", "2.42"])
def toolset(request: pytest.FixtureRequest) -> Release:
    """The set of real programs; a test that uses one of them runs once a set.

    For one set only: `@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)`.
    """
    release: Release = request.param
    return release


@pytest.fixture(scope="session")
def promtool(toolset: Release) -> Path:
    return program("promtool", toolset)


@pytest.fixture(scope="session")
def amtool(toolset: Release) -> Path:
    return program("amtool", toolset)


@pytest.fixture(scope="session")
def prometheus_bin(toolset: Release) -> Path:
    return program("prometheus", toolset)


@pytest.fixture(scope="session")
def prometheus_of_today() -> Path:
    """For tests to which it does not matter which one it is."""
    return program("prometheus", "3.5")


@pytest.fixture(scope="session")
def alertmanager_bin(toolset: Release) -> Path:
    return program("alertmanager", toolset)


@pytest.fixture(scope="session")
def victoria_metrics_bin() -> Path:
    return program("victoria-metrics", "3.5")


@pytest.fixture(scope="session")
def vmalert_bin() -> Path:
    return program("vmalert", "3.5")


@pytest.fixture(scope="session")
def c_compiler() -> Path:
    """For the fakes of the device libraries."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        missing("a C compiler is missing: apt-get install gcc libc6-dev")
    return Path(found)


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Grafana's types and registries, as pinned in tools/node; node itself is on PATH then."""
    from tools import setup_node

    problem = setup_node.problem()
    if problem is not None:
        missing(problem)
    return setup_node.FOLDER / "node_modules"


@pytest.fixture(scope="session")
def chromium() -> Path:
    from tools import setup_chromium

    found = setup_chromium.find()
    if found is None:
        missing("chromium is missing: python -m tools.setup_chromium")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real servers of the older set run in test-long: each case of theirs repeats what the current set proves."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        older = getattr(item, "callspec", None) is not None and item.callspec.params.get("toolset") == "2.42"  # type: ignore[attr-defined]
        if older and {"prometheus_bin", "alertmanager_bin"} & set(fixtures):
            item.add_marker(pytest.mark.long)
