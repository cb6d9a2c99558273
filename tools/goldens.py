"""The golden bundles in tests/golden: what they hold of a rendered bundle, and how they are brought up to date.

Each folder has a ``k3observe.yaml``. ``python -m tools.goldens`` renders it with the real command and keeps the files
that people read to see whether a change was meant, and the list of all. Read the diff before it is committed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden"
CONFIG = "k3observe.yaml"
LISTING = "files.txt"
_KEPT = re.compile(
    r"prometheus/(prometheus(-\d+)?\.yml|[^/]*-scrape\.yml|targets/.*|rules/.*-alerts-engine\.yml)|alertmanager/.*"
    r"|kubernetes/(?!dashboard-|prometheusrules|alertmanager)[^/]*|kubernetes/[^/]+/.*|compose/.*|systemd/.*")


def names() -> list[str]:
    """The golden bundles, by folder."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def rendered(name: str) -> dict[str, str]:
    """What the real command renders from a golden's configuration, as far as it is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        shutil.copy(FOLDER / name / CONFIG, root / CONFIG)
        subprocess.run([sys.executable, "-m", "k3observe", "render", "-o", "bundle"], cwd=root, check=True,
                       capture_output=True)  # fmt: skip
        bundle = root / "bundle"
        paths = sorted(str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file())
        files = {path: (bundle / path).read_text() for path in paths if _KEPT.fullmatch(path)}
    return {LISTING: "".join(f"{path}\n" for path in paths), **files}


def stored(name: str) -> dict[str, str]:
    """What is stored of a golden bundle."""
    folder = FOLDER / name
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CONFIG
    }  # fmt: skip


def main() -> None:
    """Bring every golden bundle up to date."""
    for name in names():
        fresh = rendered(name)
        for path in stored(name).keys() - fresh.keys():
            (FOLDER / name / path).unlink()
        for path, text in fresh.items():
            target = FOLDER / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        print(f"{name}: {len(fresh)} files")


if __name__ == "__main__":
    main()
