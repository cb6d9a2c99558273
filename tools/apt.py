"""Debian packages, installed or only unpacked (a private source list and lists, `apt-get download`, `dpkg -x`).

Unpacking changes nothing of the system and needs no root. The mirror is the one that the machine's own apt is
configured for; apt's configuration (proxies, certificates) stays in force.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_UPDATE_SECONDS = 180
_DOWNLOAD_SECONDS = 400


class AptError(Exception):
    """apt is missing, has no Debian mirror, or did not deliver; the message says which."""


def own_codename() -> str | None:
    """Return the codename of this Debian (`bookworm`), or None where the system is another one."""
    try:
        fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.MULTILINE))
    except OSError:
        return None
    return fields.get("VERSION_CODENAME") if fields.get("ID") == "debian" else None


def debian_mirror(scratch: Path) -> str:
    """Return the address of the Debian mirror in this machine's apt configuration, read even before the first update.

    Raises AptError where there is no apt or no mirror that carries this Debian's main suite.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise AptError("this machine has no apt-get and dpkg")
    codename = own_codename()
    if codename is None:
        raise AptError("this machine is not a Debian, so its apt names no Debian mirror")
    uris = _apt(scratch, ["--print-uris", "update"], 60)
    for address in re.findall(r"^'([^']+)/dists/" + re.escape(codename) + r"/(?:In)?Release'", uris, re.MULTILINE):
        return str(address)
    raise AptError(f"apt is configured for no mirror of Debian {codename} (see /etc/apt/sources.list*)")


class Suite:
    """One suite of a Debian mirror (`forky`, `bookworm`), its lists kept in a folder of its own."""

    def __init__(self, name: str, mirror: str, folder: Path) -> None:
        self.name = name
        self._mirror = mirror
        self._folder = folder
        self._updated = False
        self._problem: AptError | None = None

    def version(self, package: str) -> str | None:
        """Return the version (`3.5.3`) of a package in this suite, without epoch and Debian revision."""
        self._update()
        policy = _apt(self._folder, ["policy", package], 60, program="apt-cache", options=self._options())
        found = re.search(r"^  Candidate: (?:\d+:)?(\d[\d.]*)", policy, re.MULTILINE)
        return found[1].rstrip(".") if found else None

    def unpack(self, package: str) -> Path:
        """Download a package and return the folder that holds its files."""
        self._update()
        root = self._folder / "root" / package
        downloads = self._folder / "downloads" / package
        for folder in (root, downloads):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        _apt(self._folder, ["-qq", "download", package], _DOWNLOAD_SECONDS, options=self._options(), cwd=downloads)
        for archive in downloads.glob("*.deb"):
            _run(["dpkg", "-x", str(archive), str(root)], 120)
        return root

    def _update(self) -> None:
        if self._problem is not None:
            raise self._problem
        if self._updated:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
        (self._folder / "sources.list").write_text(f"deb {signed}{self._mirror} {self.name} main\n")
        try:
            _apt(self._folder, ["-qq", "update"], _UPDATE_SECONDS, options=self._options())
        except AptError as error:  # told once: the next question must not wait for the same dead mirror again
            self._problem = error
            raise
        self._updated = True

    def _options(self) -> list[str]:
        return [f"Dir::Etc::sourcelist={self._folder / 'sources.list'}", "Dir::Etc::sourceparts=/dev/null"]


def _apt(
    folder: Path,
    words: list[str],
    seconds: int,
    program: str = "apt-get",
    options: list[str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run apt on lists and caches of its own below `folder`."""
    folder = folder.absolute()
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    private = [
        f"Dir::State::lists={folder / 'lists'}",
        f"Dir::Cache={folder / 'cache'}",
        "APT::Get::List-Cleanup=0",
        "APT::Update::Error-Mode=any",
        "Acquire::Languages=none",
        "APT::Sandbox::User=",
        "Acquire::Retries=3",
        *(options or []),
    ]
    return _run([program, *(word for option in private for word in ("-o", option)), *words], seconds, cwd)


def _run(argv: list[str], seconds: int, cwd: Path | None = None) -> str:
    command = " ".join(word for word in (Path(argv[0]).name, *argv[-2:]))
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=seconds, cwd=cwd, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AptError(f"`{command}` gave no answer within {seconds} s") from error
    if done.returncode != 0:
        reason = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        raise AptError(f"`{command}` failed: {' '.join(reason)[:400]}")
    return done.stdout


def install(packages: list[str]) -> None:
    """Install packages into the system, as root; what they recommend stays out.

    Raises AptError when not root or when apt refuses.
    """
    words = ["apt-get", "install", "--no-install-recommends", "-y", *packages]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise AptError(f"as root: {' '.join(words)}")
    quiet = ["-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=120"]
    _run(["apt-get", *quiet, "update"], _UPDATE_SECONDS)
    _run([*words, *quiet], _DOWNLOAD_SECONDS)
