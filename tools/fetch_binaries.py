"""Bring the real servers into `.cache/bin/<set>/`, so that tests and the demo run them.

For each program of a set: the one in K3OBSERVE_BIN or on PATH if its version fits (linked), else the distribution's
package, else the package of the Debian suite that has it, fetched through apt and unpacked without installing it.
What is there already is left alone, so a second run is done at once.

Exit status: 0 when all are there; else 1 with CI set (a build must not pass without them), elsewhere 0 (the tests that
need them skip, saying the same).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from k3observe.drill import binaries
from tools import apt, relocate

_SUITES: dict[binaries.Release, str] = {"3.5": "forky", "2.42": "bookworm"}
"""The Debian suite that has each set."""


def main() -> int:
    """Fetch what is missing; say what cannot be had."""
    parser = argparse.ArgumentParser(description="Bring the real servers into .cache/bin.")
    parser.add_argument("--stamp", type=Path, help="file to touch once every program is there")
    stamp: Path | None = parser.parse_args().stamp
    problems: list[str] = []
    packages = _Packages(binaries.PROJECT / ".cache" / "apt")
    for release, programs in binaries.SETS.items():
        folder = binaries.cache_folder(release)
        folder.mkdir(parents=True, exist_ok=True)
        for wanted in programs:
            target = folder / wanted.name
            if os.access(target, os.X_OK):
                continue
            try:
                origin = _link_installed(wanted, target) or packages.fetch(wanted, release, target)
            except apt.AptError as error:
                problems.append(f"{wanted} is missing ({error}): {binaries.how_to_get(wanted)}")
                continue
            print(f"{target.relative_to(binaries.PROJECT)}: {origin}", flush=True)
    packages.drop()
    for problem in problems:
        print(f"fetch_binaries: {problem}", file=sys.stderr)
    if stamp is not None and not problems:
        stamp.touch()
    return 1 if problems and os.environ.get("CI") else 0


def _link_installed(wanted: binaries.Wanted, target: Path) -> str | None:
    for path in binaries.installed(wanted):
        version = binaries.version_of(path)
        if version and wanted.accepts(version):
            target.unlink(missing_ok=True)
            target.symlink_to(path)
            return f"the installed {path}"
    return None


class _Packages:
    """The packages of the distribution and of the suites, each list fetched once and only when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mirror: str | None = None
        self._suites: dict[str, apt.Suite] = {}
        self._unpacked: dict[tuple[str, str], Path] = {}

    def fetch(self, wanted: binaries.Wanted, release: binaries.Release, target: Path) -> str:
        """Put the program at `target` and say where it came from; AptError when no suite has it."""
        suites = dict.fromkeys(filter(None, (apt.own_codename(), _SUITES[release])))
        looked: list[str] = []
        for name in suites:
            suite = self._suite(name)
            for package in wanted.packages:
                version = suite.version(package)
                if version is None or not wanted.accepts(tuple(int(part) for part in version.split("."))):
                    looked.append(f"{package} of {name} is {version or 'missing'}")
                    continue
                if _place(self._files(suite, package), wanted, target):
                    return f"{package} {version} of Debian {name}"
                looked.append(f"{package} {version} of {name} holds no {wanted.name}")
        raise apt.AptError("; ".join(looked))

    def drop(self) -> None:
        """Remove lists and archives: only the programs are kept."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _suite(self, name: str) -> apt.Suite:
        if self._mirror is None:
            self._mirror = apt.debian_mirror(self._folder / "own")
        if name not in self._suites:
            print(f"reading the package list of Debian {name}", flush=True)
            self._suites[name] = apt.Suite(name, self._mirror, self._folder / name)
        return self._suites[name]

    def _files(self, suite: apt.Suite, package: str) -> Path:
        key = (suite.name, package)
        if key not in self._unpacked:
            self._unpacked[key] = suite.unpack(package)
        return self._unpacked[key]


def _place(root: Path, wanted: binaries.Wanted, target: Path) -> bool:
    """Copy the program out of an unpacked package, under another name first: a killed run leaves no half program."""
    folder = root / "usr" / "bin"
    program = next((folder / name for name in (wanted.name, *wanted.also_called) if (folder / name).is_file()), None)
    if program is None:
        return False
    data = relocate.data_folder(root)
    if data is not None:
        relocate.relocate(program, data, target)
        return True
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(program, partial)
    os.replace(partial, target)
    return True


if __name__ == "__main__":
    sys.exit(main())
