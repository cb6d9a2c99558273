"""Bring the models of the Prometheus operator's and KEDA's objects into `.cache/crds`, as pinned here.

They stay out of the project's environment: their base package brings a pytest plugin that wants a cluster.
Exit status: 0 when they are there; else 1 with CI set, elsewhere 0 (the tests that need them skip).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "crds"
PINNED = (
    "cloudcoil==0.6.0", "cloudcoil.models.prometheus-operator==0.80.1.0", "cloudcoil.models.keda==2.16.1.0",
    "pydantic==2.14.4", "httpx==0.28.1", "PyYAML==6.0.4",
)  # fmt: skip
"""The last releases that Python 3.10 to 3.13 take: prometheus-operator 0.80, KEDA 2.16."""


def problem() -> str | None:
    """Say what is missing, None when the pinned models are there."""
    return None if _stamp().exists() else f"{FOLDER} lacks the pinned models: python -m tools.setup_crds"


def main() -> int:
    """Install the models unless the pinned ones are there."""
    if problem() is not None:
        print("fetching the models of custom resources", flush=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade",
                   "--target", str(FOLDER), *PINNED]  # fmt: skip
        try:
            subprocess.run(command, check=True, timeout=300, stdin=subprocess.DEVNULL)
            _stamp().touch()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"setup_crds: {problem() or error}: {error}", file=sys.stderr)
            return 1 if os.environ.get("CI") else 0
    return 0


def _stamp() -> Path:
    return FOLDER / f".{hashlib.sha256(' '.join((*PINNED, sys.version[:4])).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(main())
