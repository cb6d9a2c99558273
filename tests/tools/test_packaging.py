"""What is installed from a wheel is what the checkout has, the symlinked rooms included."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from k3observe.version import __version__

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def package_files() -> set[str]:
    """Every file below k3observe/, through its symlinks."""
    return {
        os.path.relpath(Path(folder, name), ROOT)
        for folder, folders, names in os.walk(ROOT / "k3observe", followlinks=True)
        for name in names
        if "__pycache__" not in folder and "so" not in name.split(".")
    }


def test_wheel_and_sdist_hold_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    expected = package_files()
    assert any(name.startswith("k3observe/exporters/") for name in expected)
    assert any(name.startswith("k3observe/rules/") for name in expected)
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())
    with tarfile.open(sdist) as archive:
        assert expected <= {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel in it; dependencies come from this one, so no network is used."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(built[1])], check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


@pytest.mark.parametrize("name", ["k3observe", "k3observe-exporter", "k3observe-notify"])
def test_each_program_of_the_wheel_tells_its_version(name: str, installed: Path, tmp_path: Path) -> None:
    assert __version__ in output(tmp_path, installed / name, "--version")


def test_the_installed_package_is_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    script = "import k3observe, k3observe.exporters, k3observe.rules; print(k3observe.__file__)"
    assert Path(output(tmp_path, installed / "python", "-c", script).strip()).is_relative_to(installed.parent)


def output(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
