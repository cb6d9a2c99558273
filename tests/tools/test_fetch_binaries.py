from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.drill.binaries import SETS, Release
from tests.drill.test_binaries import program
from tools import apt

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("tools", "k3observe/__init__.py", "k3observe/version.py", "k3observe/drill/__init__.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an empty cache, as far as fetching needs one."""
    for name in (*NEEDED, "k3observe/drill/binaries.py"):
        source, target = ROOT / name, tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)
    return tmp_path / "checkout"


def fetch(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script where there is no apt."""
    command = [sys.executable, "-m", "tools.fetch_binaries", "--stamp", str(checkout / "stamp")]
    environment = {"PATH": str(checkout / "no-programs"), **environment}
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_any_source_each_program_is_named_with_the_ways_to_get_it(checkout: Path) -> None:
    done = fetch(checkout)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == sum(map(len, SETS.values()))
    assert lines[0].startswith("fetch_binaries: prometheus >= 3.5 is missing (this machine has no apt-get and dpkg): ")
    assert all("export K3OBSERVE_BIN=" in line for line in lines)
    assert not (checkout / "stamp").exists()


def test_in_a_build_a_missing_program_fails(checkout: Path) -> None:
    assert fetch(checkout, CI="true").returncode == 1


def test_programs_that_are_there_already_are_linked_set_by_set(checkout: Path, tmp_path: Path) -> None:
    versions: dict[Release, tuple[str, str]] = {"3.5": ("3.5.3", "0.33.1"), "2.42": ("2.42.0", "0.25.0")}
    for release, (prometheus, alertmanager) in versions.items():
        for wanted in SETS[release]:
            of = {"alertmanager": alertmanager, "amtool": alertmanager}.get(wanted.name, prometheus)
            program(tmp_path / release, wanted.name, "1.145.0" if wanted.name.startswith("v") else of)
    done = fetch(checkout, CI="true", K3OBSERVE_BIN=f"{tmp_path / '3.5'}{os.pathsep}{tmp_path / '2.42'}")
    assert (done.returncode, done.stderr) == (0, "")
    for release in versions:
        for wanted in SETS[release]:
            linked = checkout / ".cache" / "bin" / release / wanted.name
            assert linked.readlink() == tmp_path / release / wanted.name
    assert (checkout / "stamp").exists()

    again = fetch(checkout, CI="true")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.skipif(apt.own_codename() is None or shutil.which("apt-get") is None, reason="not a Debian")
def test_the_mirror_is_the_one_of_apts_own_configuration_even_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources.list"
    sources.write_text(
        f"deb http://other.example/repository stable main\ndeb http://mirror.example/debian {apt.own_codename()} main\n"
    )
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "/dev/null";\n')
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    assert apt.debian_mirror(tmp_path / "scratch") == "http://mirror.example/debian"
    sources.write_text("deb http://other.example/repository stable main\n")
    with pytest.raises(apt.AptError, match="apt is configured for no mirror of Debian"):
        apt.debian_mirror(tmp_path / "scratch")
