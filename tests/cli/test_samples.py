"""From each launch command that operators use to a bundle that every program accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run
from tests.config.test_launch import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_launch_command_becomes_a_bundle(shared: Path, k3observe: Run, name: str) -> None:
    assert k3observe("init", "--from-command", str(shared / "samples/launch" / name)).returncode == 0
    assert k3observe("render").returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
@pytest.mark.usefixtures("promtool", "amtool")
def test_the_bundle_of_a_launch_command_is_sound(shared: Path, k3observe: Run, name: str) -> None:
    source = str(shared / "samples/launch" / name)
    for arguments in (["init", "--from-command", source], ["render"], ["check"], ["test"]):
        done = k3observe(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert "skipped" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("version", ["2.42", "3.5"])
def test_both_generations_of_servers_accept_the_bundles(
    shared: Path, k3observe: Run, tmp_path: Path, promtool: Path, amtool: Path, version: str, toolset: str
) -> None:
    if toolset == "2.42" and version == "3.5":
        pytest.skip("Prometheus 2 refuses what is rendered for 3")
    for name in SAMPLES:
        folder = tmp_path / name
        k3observe("init", "--from-command", str(shared / "samples/launch" / name), "-o", f"{name}.yaml")
        config = tmp_path / f"{name}.yaml"
        config.write_text(config.read_text() + f'prometheus: {{version: "{version}"}}\n')
        assert yaml.safe_load(config.read_text())["version"] == 1
        assert k3observe("render", "-f", config.name, "-o", name).returncode == 0
        rules = sorted(map(str, folder.glob("prometheus/rules/*.yml")))
        for command in (
            [promtool, "check", "config", folder / "prometheus/prometheus.yml"],
            [promtool, "check", "rules", *rules],
            [amtool, "check-config", folder / "alertmanager/alertmanager.yml"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
