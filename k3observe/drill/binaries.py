"""Where the real servers and their tools are: Prometheus, Alertmanager, VictoriaMetrics.

Two sets are used. `3.5` is what k3observe is made for; `2.42` (Debian 12) is the oldest that its default output is
accepted by. A binary is taken from the first of these places that has it in a version of the set:

1. the folders of `K3OBSERVE_BIN` (separated as in `PATH`),
2. the project's own cache, which `make setup` fills: `.cache/bin/<set>/`,
3. `PATH`.

This module needs nothing but the standard library: it is read before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Release = Literal["3.5", "2.42"]
Version = tuple[int, ...]

PROJECT = Path(__file__).resolve().parents[2]
"""The checkout; in an installed wheel the folder above the package, which has no cache."""


@dataclass(frozen=True)
class Wanted:
    """One program of a set: versions from `at_least` (included) to `below` (excluded), and the package that has it."""

    name: str
    at_least: Version
    below: Version | None
    packages: tuple[str, ...]
    """Debian packages that may hold it, the likeliest first: newer Debian has promtool as a package of its own."""
    also_called: tuple[str, ...] = ()
    """Other names of the same program: Debian's Alertmanager is `prometheus-alertmanager`."""

    def accepts(self, version: Version) -> bool:
        """Tell whether this version belongs to the set."""
        return version >= self.at_least and (self.below is None or version < self.below)

    def __str__(self) -> str:
        text = f"{self.name} >= {_dotted(self.at_least)}"
        return text if self.below is None else f"{text}, < {_dotted(self.below)}"


def _set(
    prometheus: tuple[Version, Version | None], alertmanager: tuple[Version, Version | None], victoria: bool
) -> tuple[Wanted, ...]:
    programs = [
        Wanted("prometheus", *prometheus, ("prometheus",)),
        Wanted("promtool", *prometheus, ("promtool", "prometheus")),
        Wanted("alertmanager", *alertmanager, ("prometheus-alertmanager",), ("prometheus-alertmanager",)),
        Wanted("amtool", *alertmanager, ("amtool", "prometheus-alertmanager")),
    ]
    if victoria:
        for name in ("victoria-metrics", "vmalert", "vmagent"):
            programs.append(Wanted(name, (1, 90), None, ("victoria-metrics",)))
    return tuple(programs)


SETS: Mapping[Release, tuple[Wanted, ...]] = {
    "3.5": _set(((3, 5), None), ((0, 33), None), victoria=True),
    "2.42": _set(((2, 42), (3,)), ((0, 25), (0, 28)), victoria=False),
}


@dataclass(frozen=True)
class Binary:
    """A program that was found; `version` is empty where the build does not tell (VictoriaMetrics of Debian)."""

    name: str
    path: Path
    version: Version


class BinaryMissingError(LookupError):
    """No place has this program in a fitting version; the message says where was looked and how to get it."""


def find(name: str, release: Release = "3.5") -> Binary:
    """Return the program of this set.

    Raises BinaryMissingError when no place has a fitting version, KeyError when the set has no such program.
    """
    wanted = wanted_of(name, release)
    seen: list[str] = []
    for path in _candidates(wanted, release):
        version = version_of(path)
        if version is None:
            seen.append(f"{path} does not run")
        elif version and not wanted.accepts(version):
            seen.append(f"{path} is {_dotted(version)}")
        else:
            return Binary(name, path, version)
    place = "; ".join(seen) if seen else "not in K3OBSERVE_BIN, the project's cache or PATH"
    raise BinaryMissingError(
        f"{wanted} is missing ({place}). In a checkout `make setup` fetches it without installing it;"
        f" elsewhere {how_to_get(wanted)}"
    )


def wanted_of(name: str, release: Release) -> Wanted:
    """Return the program of this name in the set; KeyError when the set has none."""
    for wanted in SETS[release]:
        if wanted.name == name:
            return wanted
    raise KeyError(f"the set {release} has no program {name!r}; it has {', '.join(w.name for w in SETS[release])}")


def how_to_get(wanted: Wanted) -> str:
    """Say how a person gets the program where it cannot be fetched."""
    return (
        f"install the package {wanted.packages[0]} (Debian 14 has the set 3.5, Debian 12 the set 2.42), or unpack the"
        f" program's release and name its folder: export K3OBSERVE_BIN=/path/to/folder"
    )


def cache_folder(release: Release) -> Path:
    """Return the folder of the project's cache that holds this set; it need not exist."""
    return PROJECT / ".cache" / "bin" / release


def installed(wanted: Wanted) -> Iterator[Path]:
    """Yield every file of this name in `K3OBSERVE_BIN`, then in `PATH`, whatever its version."""
    for variable in ("K3OBSERVE_BIN", "PATH"):
        yield from _in_folders(wanted, os.environ.get(variable, ""))


def version_of(path: Path) -> Version | None:
    """Ask the program for its version: empty when it runs but does not tell, None when it does not run."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    found = re.search(r"(?:version |-v)(\d+(?:\.\d+)+)", done.stdout + done.stderr)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _candidates(wanted: Wanted, release: Release) -> Iterator[Path]:
    yield from _in_folders(wanted, os.environ.get("K3OBSERVE_BIN", ""))
    yield from _in_folders(wanted, str(cache_folder(release)))
    yield from _in_folders(wanted, os.environ.get("PATH", ""))


def _in_folders(wanted: Wanted, folders: str) -> Iterator[Path]:
    for folder in filter(None, folders.split(os.pathsep)):
        for name in (wanted.name, *wanted.also_called):
            found = shutil.which(name, path=folder)
            if found:
                yield Path(found).absolute()


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)
