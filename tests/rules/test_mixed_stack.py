"""Services of several engines in one stack do not disturb each other's rules and tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k3observe.render import render
from tests.rules.stacks import SERVICES, planned, stack


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_alerts_on_what_is_expected_know_the_services_apart(promtool: Path, tmp_path: Path) -> None:
    services = [SERVICES[name] | {"targets": [f"10.0.{index}.1:8000", f"10.0.{index}.2:8000"]}
                for index, name in enumerate(("vllm, nvidia by the sidecar", "generic, nvidia by dcgm"))]  # fmt: skip
    bare = services[1] | {"name": "bare", "accelerators": None, "targets": ["10.0.9.1:8000"]}
    bundle = render(planned(stack() | {"services": [*services, bare]}), frozenset({"prometheus"}))
    for path, content in bundle.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    subprocess.run([promtool, "check", "rules", *(tmp_path / "prometheus/rules").glob("*.yml")], check=True)
    tests = [tmp_path / f"prometheus/tests/k3-{name}.yml" for name in ("EngineReplicasLow", "SignalMissing")]
    done = subprocess.run([promtool, "test", "rules", *tests], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
