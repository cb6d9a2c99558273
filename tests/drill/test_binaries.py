from __future__ import annotations

import os
from pathlib import Path

import pytest

from k3observe.drill import binaries


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any of the programs; its PATH has nothing but a shell's folder."""
    monkeypatch.setattr(binaries, "PROJECT", tmp_path / "project")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("K3OBSERVE_BIN", raising=False)
    return tmp_path


def program(folder: Path, name: str, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{name}, version {version} (branch: x, revision: y)'\n")
    path.chmod(0o755)
    return path


def test_a_named_folder_comes_before_the_cache_and_the_cache_before_the_path(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(nowhere / "path", "promtool", "3.6.0")
    assert binaries.find("promtool").path == on_path
    cached = program(binaries.cache_folder("3.5"), "promtool", "3.5.3+ds1")
    assert binaries.find("promtool") == binaries.Binary("promtool", cached, (3, 5, 3))
    named = program(nowhere / "named", "promtool", "3.7.1")
    monkeypatch.setenv("K3OBSERVE_BIN", f"{nowhere / 'empty'}{os.pathsep}{nowhere / 'named'}")
    assert binaries.find("promtool").path == named


def test_a_program_of_another_version_is_passed_over_and_named_in_the_message(nowhere: Path) -> None:
    old = program(nowhere / "path", "prometheus", "2.42.0+ds")
    assert binaries.find("prometheus", "2.42").path == old
    expected = r"prometheus >= 3\.5 is missing \(.*prometheus is 2\.42\.0\)"
    with pytest.raises(binaries.BinaryMissingError, match=expected):
        binaries.find("prometheus", "3.5")


def test_the_name_that_debian_gives_to_alertmanager_is_known(nowhere: Path) -> None:
    installed = program(nowhere / "path", "prometheus-alertmanager", "0.33.1")
    assert binaries.find("alertmanager").path == installed


def test_a_program_that_does_not_run_is_said_to_not_run(nowhere: Path) -> None:
    broken = program(nowhere / "path", "amtool", "0.33.1")
    broken.write_text("#!/no/such/interpreter\n")
    with pytest.raises(binaries.BinaryMissingError, match="amtool does not run"):
        binaries.find("amtool")


def test_the_message_says_where_was_looked_and_how_to_get_it(nowhere: Path) -> None:
    with pytest.raises(binaries.BinaryMissingError) as missing:
        binaries.find("alertmanager", "2.42")
    message = str(missing.value)
    assert message.startswith("alertmanager >= 0.25, < 0.28 is missing (not in K3OBSERVE_BIN")
    for way in ("make setup", "prometheus-alertmanager", "export K3OBSERVE_BIN="):
        assert way in message


def test_a_program_that_no_set_has_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError, match=r"the set 2\.42 has no program 'vmalert'"):
        binaries.find("vmalert", "2.42")


def test_the_real_programs_are_of_their_sets(promtool: Path, amtool: Path, toolset: binaries.Release) -> None:
    for path, name in ((promtool, "promtool"), (amtool, "amtool")):
        version = binaries.version_of(path)
        assert version
        assert binaries.wanted_of(name, toolset).accepts(version)
