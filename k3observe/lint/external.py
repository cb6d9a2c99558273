"""The verdict of Prometheus' and Alertmanager's own programs, where they are installed."""

from __future__ import annotations

from collections.abc import Sequence

from k3observe.drill.binaries import BinaryMissingError
from k3observe.lint.finding import Fault, Finding
from k3observe.lint.folder import Document
from k3observe.lint.programs import amtool, program, promtool


def external(documents: Sequence[Document]) -> tuple[list[Finding], list[str]]:
    """Run promtool and amtool over the files they know; return findings, and what was skipped and why."""
    files: dict[str, list[str]] = {"rules": [], "scraping": [], "alertmanager": []}
    for document in documents:
        if document.kind in files and document.located.file not in files[document.kind]:
            snippet = document.kind == "alertmanager" and not _has_root_receiver(document)
            if not snippet:
                files[document.kind].append(document.located.file)
    findings: list[Finding] = []
    skipped: list[str] = []
    if _installed("promtool", files["rules"] + files["scraping"], skipped):
        findings += _each("promtool/rules", files["rules"])
        for file in files["scraping"]:
            findings += _config(file, skipped)
    if _installed("amtool", files["alertmanager"], skipped):
        findings += _each("amtool/config", files["alertmanager"])
    return findings, skipped


def _installed(name: str, files: Sequence[str], skipped: list[str]) -> bool:
    if not files:
        return False
    try:
        program(name)
    except BinaryMissingError as missing:
        skipped.append(f"{name} over {len(files)} files: {missing}")
        return False
    return True


def _each(check: str, files: Sequence[str]) -> list[Finding]:
    """One call for all that are well; one a file only where something is not."""
    if not files or _run(check, *files)[0]:
        return []
    verdicts = ((file, *_run(check, file)) for file in files)
    return [_finding(check, file, said) for file, ok, said in verdicts if not ok]


def _run(check: str, *files: str) -> tuple[bool, str]:
    if check == "amtool/config":
        return amtool("check-config", *files)
    return promtool("check", "rules", *files)


def _config(file: str, skipped: list[str]) -> list[Finding]:
    """Secrets and certificates lie on the server: where they are not here, the syntax alone is checked."""
    ok, said = promtool("check", "config", file)
    if ok:
        return []
    syntax_ok, syntax_said = promtool("check", "config", "--syntax-only", file)
    if not syntax_ok:
        return [_finding("promtool/config", file, syntax_said)]
    skipped.append(f"{file}: promtool checked its syntax only: {_words(said, file)}")
    return []


def _finding(check: str, file: str, said: str) -> Finding:
    return Finding.of(Fault(_words(said, file)), check, file, 0)


def _words(said: str, file: str) -> str:
    """What the program objects to, without its own headings."""
    lines = [line.strip().removeprefix(f"Checking '{file}'").strip() for line in said.splitlines()]
    lines = [line.removeprefix("FAILED:").strip() for line in lines
             if line and not line.startswith(("Checking ", "SUCCESS", "amtool: error"))]  # fmt: skip
    return " ".join(" ".join(line for line in lines if line).removeprefix(f"{file}: ").split())[:400]


def _has_root_receiver(document: Document) -> bool:
    route = document.located.data.get("route")
    return isinstance(route, dict) and "receiver" in route
