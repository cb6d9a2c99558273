"""Which files of a folder can be checked, and as what."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.source import Located, load_documents
from k3observe.lint.finding import Finding

MAX_BYTES = 16 << 20
MAX_FILES = 20_000
_SKIPPED = frozenset({"node_modules", "__pycache__", "venv"})
_ENDINGS = (".yml", ".yaml", ".rules", ".json")
_OURS = re.compile(r"^(groups|scrape_configs|rule_files|receivers|route):", re.M)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document or a dashboard.

    ``kind`` is rules, operator-rules, scraping, targets, monitor, alertmanager or dashboard.
    """

    kind: str
    located: Located
    text: str


def documents(root: Path) -> Iterator[Document | Finding]:
    """Yield what can be checked below a folder, or in one file; findings for what cannot be read.

    Links are not followed, hidden folders are left out. Raises ConfigError if there are too many files.
    """
    for path in [root] if root.is_file() else list(_files(root)):
        text = _read(path)
        if isinstance(text, Finding):
            yield text
        elif path.suffix == ".json":
            yield from _dashboard(path, text)
        else:
            yield from _yaml(path, text)


def _files(root: Path) -> Iterator[Path]:
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(_ENDINGS) and name[0] != "." and path.is_file() and not path.is_symlink():
                count += 1
                if count > MAX_FILES:
                    raise ConfigError([Problem(f"holds more than {MAX_FILES} files to check", file=str(root),
                                               fix="name a folder of rules and configurations")])  # fmt: skip
                yield path


def _read(path: Path) -> str | Finding:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            return Finding(str(path), 0, "yaml/syntax", "is larger than 16 MiB and was not read")
        return raw.decode("utf-8-sig")
    except OSError as error:
        return Finding(str(path), 0, "yaml/syntax", f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return Finding(str(path), 0, "yaml/syntax", "is not UTF-8")


def _dashboard(path: Path, text: str) -> Iterator[Document]:
    if '"panels"' not in text:
        return
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(data, dict) and isinstance(data.get("panels"), list) and ("schemaVersion" in data or "title" in data):
        yield Document("dashboard", Located(data, str(path)), text)


def _yaml(path: Path, text: str) -> Iterator[Document | Finding]:
    try:
        found = load_documents(text, str(path))
    except ConfigError as error:
        # a template of Helm, say, is no YAML, and not ours to judge
        if _OURS.search(text):
            yield from (Finding.from_problem(problem, "yaml/syntax") for problem in error.problems)
        return
    for located in found:
        kind = _kind(located.data)
        if kind:
            yield Document(kind, located, text)


def _kind(data: object) -> str:
    if isinstance(data, list):
        targets = [item for item in data if isinstance(item, dict) and isinstance(item.get("targets"), list)]
        return "targets" if data and len(targets) == len(data) else ""
    if not isinstance(data, dict):
        return ""
    if data.get("kind") in ("PrometheusRule", "VMRule"):
        spec = data.get("spec")
        return "operator-rules" if isinstance(spec, dict) and "groups" in spec else ""
    if data.get("kind") in ("PodMonitor", "ServiceMonitor"):
        return "monitor"
    if "kind" in data or "tests" in data:
        return ""
    if isinstance(data.get("groups"), list):
        return "rules"
    if "scrape_configs" in data or "rule_files" in data:
        return "scraping"
    return "alertmanager" if "route" in data and "receivers" in data else ""
