"""Draw the pictures of the documentation: every dashboard over the simulated stack, through Chromium.

Takes the three minutes of the story that the simulated services play. Writes docs/pictures/*.png and, beside it in
docs/pictures/zh-CN, those of the Chinese dashboards.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from k3observe.drill.binaries import BinaryMissingError
from k3observe.preview.chromium import ChromiumError, find, shot
from k3observe.preview.demo import SECONDS, simulated
from k3observe.preview.evaluate import evaluate
from k3observe.preview.page import page
from k3observe.preview.prometheus import Prometheus, Span
from k3observe.render import grafana

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
STEP = 2.0
SETS = (("en", "dark", PICTURES, "simulated services"), ("zh-CN", "light", PICTURES / "zh-CN", "模拟服务"))


def main() -> int:
    """Draw all pictures; 1 with a message where a program is missing."""
    try:
        find()
        for language, theme, folder, source in SETS:
            _draw(language, theme, folder, source)
    except (BinaryMissingError, ChromiumError, RuntimeError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


def _draw(language: str, theme: str, folder: Path, source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="k3observe-pictures-") as name:
        print(f"{language}: {SECONDS:.0f} s of the simulated services", flush=True)
        with simulated(Path(name), language) as (plan, server):
            end = time.time()
            span = Span(end - (SECONDS - 10) // STEP * STEP, end, STEP)
            documents = [json.loads(content) for path, content in grafana.files(plan) if path.endswith(".json")]
            result = evaluate(documents, Prometheus(server.url), span, STEP)
        target = Path(name) / "preview.html"
        target.write_text(page(result, span, source, language), encoding="utf-8")
        for board in result.boards:
            picture = folder / f"{board['uid'].removeprefix('k3-demo-')}.png"
            shot(target, board["uid"], theme, picture)
            print(f"  {picture} {picture.stat().st_size // 1024} KiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
