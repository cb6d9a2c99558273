"""A real browser draws every panel of every dashboard, light and dark, from a file, without an error."""

from __future__ import annotations

import html
import json
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from k3observe.preview.chromium import shot

pytestmark = pytest.mark.long
BOARDS = ("overview", "service", "kv-cache", "experts", "accelerators", "monitoring")


@pytest.fixture(scope="module")
def browser(chromium: Path, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[str,
                                                                                                                str]]:
    """Opens a dashboard of the page in a theme, each once."""

    @cache
    def look(board: str, theme: str = "dark") -> tuple[str, str]:
        return opened(chromium, made, f"board={board}&theme={theme}&open=1", tmp_path_factory.mktemp("profile"))

    return look


def opened(chromium: Path, page: Path, fragment: str, folder: Path) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser wrote to its console."""
    done = subprocess.run(
        [str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         f"--user-data-dir={folder}", "--virtual-time-budget=5000", "--enable-logging=stderr",
         "--window-size=1600,1000",
         "--dump-dom", f"file://{page}#{fragment}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_is_drawn_and_the_console_is_silent(
    board: str, theme: str, browser: Callable[[str, str], tuple[str, str]]
) -> None:
    document, console = browser(board, theme)
    assert console == ""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.S)
    assert text
    data = json.loads(text[1])
    wanted = next(item for item in data["boards"] if item["uid"].endswith(board))
    cards = dict(re.findall(r'data-panel="(\d+)"(.*?)(?=data-panel="|</main>)', document, re.S))
    assert len(cards) == len(wanted["panels"])
    for panel in wanted["panels"]:
        card = cards[str(panel["id"])]
        if panel["type"] == "row":
            continue
        assert html.escape(panel["title"], quote=False) in card
        shapes = re.search(r'data-shapes="(\d+)"', card)
        plain = re.search(r'class="(stats|bars|scroll|text|empty)"', card)
        assert plain or (shapes and int(shapes[1]) > 3), panel["title"]
        assert 'class="empty error"' not in card, panel["title"]
    assert f'data-theme="{theme}"' in document


def test_all_kinds_of_panels_are_drawn_with_data(browser: Callable[[str, str], tuple[str, str]]) -> None:
    """Not only their empty texts."""
    seen: set[str] = set()
    for board in BOARDS:
        document, _ = browser(board, "dark")
        for kind, card in re.findall(r'data-type="([\w-]+)"(.*?)(?=data-panel="|</main>)', document, re.S):
            if 'class="empty"' not in card:
                seen.add(kind)
    assert seen == {"stat", "gauge", "bargauge", "table", "heatmap", "state-timeline", "timeseries", "text"}


def test_panels_do_not_lie_over_each_other(browser: Callable[[str, str], tuple[str, str]]) -> None:
    for board in BOARDS:
        document, _ = browser(board, "dark")
        boxes = [tuple(map(float, found)) for found in re.findall(
            r'class="(?:panel|row)"[^>]* style="left: ([\d.]+)px; top: ([\d.]+)px; '
            r"width: ([\d.]+)px; height: ([\d.]+)px", document)]
        assert len(boxes) > 5
        for index, (x, y, w, h) in enumerate(boxes):
            for x2, y2, w2, h2 in boxes[index + 1 :]:
                assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_a_picture_is_as_tall_as_the_dashboard_and_not_blank(chromium: Path, made: Path, tmp_path: Path) -> None:
    picture = tmp_path / "experts.png"
    shot(made, "k3-demo-experts", "dark", picture)
    content = picture.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert width == 1600
    assert 1500 < height < 6000
    pixels = zlib.decompress(b"".join(_chunks(content, b"IDAT")))
    assert len(set(pixels)) > 100


def _chunks(content: bytes, kind: bytes) -> list[bytes]:
    found, at = [], 8
    while at < len(content):
        length = struct.unpack(">I", content[at : at + 4])[0]
        if content[at + 4 : at + 8] == kind:
            found.append(content[at + 8 : at + 8 + length])
        at += 12 + length
    return found
