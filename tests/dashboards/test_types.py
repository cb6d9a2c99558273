"""Layers 1 and 2: Grafana's own types and registries accept every dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards import grafana_checks
from tests.dashboards.stacks import everything

pytestmark = pytest.mark.long


@pytest.mark.parametrize("release", grafana_checks.RELEASES)
def test_every_dashboard_fits_the_types_of_grafana(release: str, node_modules: Path, tmp_path: Path) -> None:
    found = grafana_checks.type_errors(node_modules, tmp_path, everything(), release)
    assert {name: errors for name, errors in found.items() if errors} == {}


def test_every_id_is_in_the_registries_of_grafana(node_modules: Path) -> None:
    known = grafana_checks.registries(node_modules)
    errors = [f"{name}: {error}" for name, board in everything().items()
              for error in grafana_checks.registry_errors(known, board)]  # fmt: skip
    assert errors == []
