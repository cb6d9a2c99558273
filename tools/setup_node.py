"""Bring Grafana's types and registries into `.cache/node`, exactly as `tools/node/package-lock.json` pins them.

Exit status: 0 when they are there; else 1 with CI set, elsewhere 0 (the tests that need them skip).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINNED = ROOT / "tools" / "node"
FOLDER = ROOT / ".cache" / "node"
_FILES = ("package.json", "package-lock.json")


def problem() -> str | None:
    """Say what is missing, None when the pinned packages and node are there."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install nodejs npm"
    if not _stamp().exists():
        return f"{FOLDER} lacks the pinned packages: python -m tools.setup_node"
    return None


def main() -> int:
    """Install the packages unless the pinned ones are there."""
    if problem() is not None:
        print("fetching the npm packages of tools/node", flush=True)
        try:
            _install()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"setup_node: {problem() or error}: {error}", file=sys.stderr)
            return 1 if os.environ.get("CI") else 0
    return 0


def _install() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy2(PINNED / name, FOLDER / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(command, cwd=FOLDER, check=True, timeout=300, stdin=subprocess.DEVNULL)
    _stamp().touch()


def _stamp() -> Path:
    pinned = b"".join((PINNED / name).read_bytes() for name in _FILES)
    return FOLDER / "node_modules" / f".{hashlib.sha256(pinned).hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(main())
