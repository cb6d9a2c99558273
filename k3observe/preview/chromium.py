"""Pictures of the page, taken by Chromium where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1600
_SIZE = re.compile(r'data-height="(\d+)"')


class ChromiumError(RuntimeError):
    """Chromium is missing or did not do it; the message says what to do."""


def find() -> Path:
    """The browser on PATH; raises ChromiumError."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise ChromiumError("chromium is missing: apt-get install chromium, or leave out --png")
    return Path(found)


def shot(page: Path, board: str, theme: str, picture: Path, seconds: float = 60.0) -> None:
    """Write the picture of one dashboard of a page, as tall as it is."""
    browser = find()
    url = f"file://{quote(str(page.resolve()))}#board={quote(board)}&theme={theme}"
    dump = _run(browser, ["--dump-dom", f"--window-size={WIDTH},1000", url], seconds).decode("utf-8", "replace")
    height = _SIZE.search(dump)
    if height is None:
        raise ChromiumError(f"{page}: the page was not drawn")
    _run(browser, [f"--screenshot={picture.resolve()}", f"--window-size={WIDTH},{min(int(height[1]), 12000)}", url],
         seconds)
    if not picture.is_file():
        raise ChromiumError(f"{picture}: Chromium wrote no picture")


def _run(browser: Path, arguments: Sequence[str], seconds: float) -> bytes:
    with tempfile.TemporaryDirectory(prefix="k3observe-chromium-") as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
                 "--hide-scrollbars", "--virtual-time-budget=5000", f"--user-data-dir={profile}"]  # fmt: skip
        try:
            done = subprocess.run([str(browser), *flags, *arguments], capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise ChromiumError(f"Chromium took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise ChromiumError(f"Chromium ended with {done.returncode}: {done.stderr[-300:].decode('utf-8', 'replace')}")
    return done.stdout
