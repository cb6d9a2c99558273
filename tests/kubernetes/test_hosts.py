"""Machines without Kubernetes: compose files, systemd units, images."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import check_jsonschema
import jsonschema
import pytest
import yaml

from tests.conftest import ROOT
from tests.kubernetes.conftest import Render, stack, write

HOSTS = {"discovery": None, "targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "replicas": None}
NOTIFY = {"receivers": {"ops": {"robot": {"bridge": "http://127.0.0.1:19304/ops"}}}, "routes": {"default": "ops"}}
VARIANTS = {
    "gpu-log": {},
    "gpu-plugin": {"sidecar": {"experts": {"source": "plugin"}}},
    "npu": {"engine": {"name": "vllm-ascend", "version": "0.23"}, "accelerators": {"kind": "ascend", "per_node": 16},
            "sidecar": {"collect": ["npu", "experts"]}},
    "kv-only": {"sidecar": {"collect": ["kv-cache"]}},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_compose_files_fit_the_compose_specification(rendered: Render, variant: str) -> None:
    folder = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    bundle = rendered(stack({**HOSTS, **VARIANTS[variant]}, {"compose": True}, notify=NOTIFY), "compose")
    files = {path: yaml.safe_load(text) for path, text in bundle.items() if path.endswith(".yaml")}
    assert set(files) == {"compose/compose.yaml", "compose/sidecar-kimi-k3.yaml"}
    for document in files.values():
        jsonschema.validate(document, schema)
        for name, service in document["services"].items():
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True, name
    servers = files["compose/compose.yaml"]["services"]
    assert set(servers) == {"prometheus", "alertmanager", "grafana", "k3observe-notify"}
    assert servers["prometheus"]["image"] == "prom/prometheus:v3.5.0"


def test_every_file_that_compose_mounts_is_rendered(rendered: Render, tmp_path: Path) -> None:
    bundle = rendered(stack(HOSTS, {"compose": True}))
    write(bundle, tmp_path)
    servers = yaml.safe_load(bundle["compose/compose.yaml"])["services"]
    mounts = [mount.split(":")[0] for service in servers.values() for mount in service["volumes"]]
    for mount in (item for item in mounts if item.startswith("../")):
        assert (tmp_path / "compose" / mount).is_dir(), mount
    config = next(flag for flag in servers["prometheus"]["command"] if flag.startswith("--config.file="))
    assert (tmp_path / "prometheus" / config.rpartition("/")[2]).is_file()


@pytest.mark.parametrize("variant", VARIANTS)
def test_systemd_takes_the_units_and_finds_them_hardened(rendered: Render, tmp_path: Path, variant: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    bundle = rendered(stack({**HOSTS, **VARIANTS[variant]}, {"systemd": True}, notify=NOTIFY), "systemd")
    units = [path for path in bundle if path.endswith(".service")]
    assert len(units) == 2
    for path in units:
        unit = tmp_path / Path(path).name
        program = Path(sys.executable).parent
        unit.write_text(bundle[path].decode().replace("/usr/local/bin/k3observe", f"{program}/k3observe"))
        command = ["systemd-analyze", "verify", "--man=no", unit]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        complaints = [line for line in done.stderr.splitlines() if unit.name in line]
        assert (done.returncode, complaints) == (0, []), done.stderr
        score = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=25", unit], capture_output=True, text=True,
            timeout=60)  # fmt: skip
        assert score.returncode == 0, score.stdout.splitlines()[-1]


def test_a_unit_opens_the_devices_of_its_service_only(rendered: Render) -> None:
    def unit(variant: str) -> str:
        bundle = rendered(stack({**HOSTS, **VARIANTS[variant]}, {"systemd": True}), "systemd")
        return bundle["systemd/k3observe-exporter-kimi-k3.service"].decode()

    assert re.findall(r"^Device.*$", unit("gpu-log"), re.M) == ["DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"]
    assert unit("npu").count("DeviceAllow=/dev/davinci") == 17
    assert "SupplementaryGroups=HwHiAiUser" in unit("npu")
    assert "PrivateDevices=yes" in unit("kv-only")


def test_the_exporter_s_image_holds_what_the_sidecar_imports(tmp_path: Path) -> None:
    """The steps of the Containerfile on this machine: the same packages, the same part of the project."""
    text = (ROOT / "images" / "Containerfile.exporter").read_text()
    packages = re.search(r"-c constraints.txt ([\w \-]+) \\", text)
    assert packages is not None
    app = tmp_path / "app"
    site = Path(yaml.__file__).parent.parent
    tops = {"prometheus-client": ["prometheus_client"], "nvidia-ml-py": ["pynvml.py"], "PyYAML": ["yaml", "_yaml"],
            "bcrypt": ["bcrypt"]}  # fmt: skip
    app.mkdir()
    for package in packages[1].split():
        for top in tops[package]:
            (app / top).symlink_to(site / top)
    (app / "k3observe").mkdir()
    for part in re.findall(r"/tmp/k3observe/k3observe/(\S+)", text):
        (app / "k3observe" / part).symlink_to((ROOT / "k3observe" / part).resolve())
    for flags, expected in ((["--help"], "--gpu.devices"), (["--collect=gpu,kv-cache", "--once"], "k3_source_up")):
        command = [sys.executable, "-S", "-m", "k3observe.exporters.main", *flags]
        environment = {"PYTHONPATH": str(app), "K3OBSERVE_ONCE_TIMEOUT": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, cwd=tmp_path)
        assert expected in done.stdout, done.stderr
        assert "Traceback" not in done.stderr
