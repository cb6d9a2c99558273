"""Have a Chromium for the pictures and the browser tests: the one on PATH, else Debian's package (root only).

Exit status: 0 when it is there; else 1 with CI set, elsewhere 0 (the tests that need it skip).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools import apt

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ["chromium", "fonts-dejavu-core", "fonts-wqy-microhei"]
"""With fonts for both languages: without the last one Chinese is drawn as empty boxes."""


def find() -> Path | None:
    """Return the browser on PATH."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def main() -> int:
    """Install the browser if it is missing."""
    if find() is None:
        print("installing Debian's chromium", flush=True)
        try:
            apt.install(PACKAGES)
        except apt.AptError as error:
            print(f"setup_chromium: chromium is missing: {error}", file=sys.stderr)
            return 1 if os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
