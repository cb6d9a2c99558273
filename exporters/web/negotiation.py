"""Which format and encoding a scraper gets.

The client's header is first reduced to one of a few canonical forms and only that is shown to prometheus_client's
``choose_encoder``: its versions echo whatever version was asked for into the Content-Type, and the snapshots of the
exposition must not grow with what clients send.
"""

from __future__ import annotations

from collections.abc import Iterator

OPENMETRICS, TEXT = "application/openmetrics-text", "text/plain"
ESCAPINGS = ("allow-utf-8", "underscores", "dots", "values")


def canonical_accept(header: str) -> str:
    """Return the best accepted format as a header ``choose_encoder`` understands; ``""`` is text 0.0.4.

    Higher ``q`` wins, then what stands first. OpenMetrics is served as 1.0.0, text as 1.0.0 where a scraper asks
    for it (it then names how it wants UTF-8 names escaped), else as 0.0.4.
    """
    best, best_quality = "", 0.0
    for media, parameters in _items(header[:4096]):
        quality = _quality(parameters)
        form = _form(media, parameters)
        if form is not None and quality > best_quality:
            best, best_quality = form, quality
    return best


def gzip_accepted(header: str) -> bool:
    """Whether Accept-Encoding allows gzip."""
    qualities = {coding: _quality(parameters) for coding, parameters in _items(header[:4096])}
    return qualities.get("gzip", qualities.get("*", 0.0)) > 0


def _form(media: str, parameters: dict[str, str]) -> str | None:
    version = parameters.get("version", "")
    escaping = parameters.get("escaping", "")
    suffix = f";escaping={escaping}" if escaping in ESCAPINGS else ""
    if media == OPENMETRICS and version in ("", "1.0.0"):
        return f"{OPENMETRICS};version=1.0.0{suffix}" if version else OPENMETRICS
    if media == TEXT:
        return f"{TEXT};version=1.0.0{suffix}" if version == "1.0.0" else ""
    return "" if media in ("*/*", "text/*") else None


def _items(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for item in header.split(","):
        value, *rest = (part.strip() for part in item.split(";"))
        pairs = (part.partition("=") for part in rest)
        yield value.lower(), {name.strip().lower(): text.strip().strip('"') for name, _, text in pairs}


def _quality(parameters: dict[str, str]) -> float:
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
