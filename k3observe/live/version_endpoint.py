"""What an engine says its version is: ``/version`` beside ``/metrics``, where there is one (vLLM, vLLM-Ascend)."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from k3observe.catalogue import Version
from k3observe.live.exposition_source import answer

_LIMIT = 64 << 10
_SECONDS = 3.0


def version_of(metrics_url: str, ca_file: Path | None = None) -> Version | None:
    """The version an engine tells at its ``/version``; None where nothing there tells one."""
    url = urlsplit(metrics_url)._replace(path="/version", query="", fragment="").geturl()
    try:
        told = json.loads(answer(url, _LIMIT, _SECONDS, ca_file))
        return Version.parse(str(told["version"])) if isinstance(told, dict) and "version" in told else None
    except (OSError, ValueError):
        return None
