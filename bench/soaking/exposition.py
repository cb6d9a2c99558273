"""A scrape, and its samples."""

from __future__ import annotations

import re
import urllib.request

SAMPLE = re.compile(r"([a-z0-9_]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]


def read(address: str) -> str:
    """Scrape."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def parsed(text: str) -> Samples:
    """Samples by name and labels."""
    found = {}
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"not a sample: {line[:200]}")
            found[match[1], tuple(sorted(LABEL.findall(match[2] or "")))] = float(match[3])
    return found
