"""Runs every check over a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from k3observe.lint import registry
from k3observe.lint.disabled import Disabled
from k3observe.lint.finding import Check, Fault, Finding
from k3observe.lint.folder import Document
from k3observe.lint.jobs import known_jobs
from k3observe.lint.labels import ANY, Labels, labels
from k3observe.lint.panels import Dashboard
from k3observe.lint.promql import read_names, says_or
from k3observe.lint.rules import Rule, rules, seconds
from k3observe.lint.scrape import Scraping
from k3observe.lint.surroundings import Surroundings

MAX_RULES = 100_000
S = TypeVar("S")


def lint(found: Sequence[Document | Finding], around: Surroundings) -> list[Finding]:
    """Check what ``documents`` found; ``around`` is what the configuration says, completed by the documents."""
    documents = [item for item in found if isinstance(item, Document)]
    read = [item for item in found if isinstance(item, Finding)]
    parsed: dict[int, list[Rule]] = {}
    for index, document in enumerate(documents):
        if document.kind in ("rules", "operator-rules"):
            root = ("spec",) if document.kind == "operator-rules" else ()
            items = list(islice(rules(document.located, root), MAX_RULES))
            parsed[index] = [item for item in items if isinstance(item, Rule)]
            read += (item for item in items if isinstance(item, Finding))
    around = _completed(around, documents, [rule for group in parsed.values() for rule in group])
    for index, document in enumerate(documents):
        read += _checked(document, parsed.get(index, ()), around)
    comments = _comments(documents, parsed)
    read += (finding for disabled in comments.values() for finding in disabled.unknown(registry.IDS))
    return sorted({item for item in read if item.file not in comments or not comments[item.file].hides(item)})


def _checked(document: Document, found: Iterable[Rule], around: Surroundings) -> Iterator[Finding]:
    located = document.located
    for rule in found:
        yield from _run(registry.RULES, rule, around, located.file, rule.line)
    if document.kind in ("scraping", "targets"):
        yield from _run(registry.SCRAPING, Scraping(located), around, located.file, 1)
    elif document.kind == "alertmanager":
        yield from _run(registry.ALERTMANAGER, located, around, located.file, 1)
    elif document.kind == "dashboard":
        yield from _run(registry.DASHBOARDS, Dashboard(located.file, located.data), around, located.file, 0)


def _run(
    checks: Iterable[Check[S]], subject: S, around: Surroundings, file: str, line: int
) -> Iterator[Finding]:
    for check in checks:
        try:
            yield from [Finding.of(fault, check.id, file, line) for fault in check.find(subject, around)]
        except RecursionError:  # aliases nest what is flat in the file
            yield Finding.of(Fault("is nested too deeply to be checked"), check.id, file, line)


def _comments(documents: Sequence[Document], parsed: Mapping[int, list[Rule]]) -> dict[str, Disabled]:
    starts: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for index, document in enumerate(documents):
        if document.kind != "dashboard":
            located = document.located
            texts[located.file] = document.text
            found = starts.setdefault(located.file, [])
            found += (rule.line for rule in parsed.get(index, ()))
            found += (located.line(path) for _, path in Scraping(located).jobs())
    return {file: Disabled.read(file, text, starts[file]) for file, text in texts.items()}


def _completed(around: Surroundings, documents: Sequence[Document], found: Sequence[Rule]) -> Surroundings:
    """What the documents say of each other: intervals, jobs, labels of recorded series."""
    scrapings = [Scraping(item.located) for item in documents if item.kind in ("scraping", "targets")]
    jobs = [(scraping, job) for scraping in scrapings for job, _ in scraping.jobs()]
    if jobs:
        common = next((s.common for s in scrapings if s.common), {})
        around = replace(
            around,
            scrape_interval=seconds(common.get("scrape_interval")) or around.scrape_interval,
            evaluation_interval=seconds(common.get("evaluation_interval")) or around.evaluation_interval,
            job_intervals={str(job.get("job_name")): scraping.interval(job) for scraping, job in jobs
                           if "scrape_interval" in job},
        )  # fmt: skip
    monitors = [item.located.data for item in documents if item.kind == "monitor"]
    return replace(around, jobs=known_jobs(scrapings, monitors), records=_records(found), filled=_filled(found))


def _records(found: Sequence[Rule]) -> dict[str, Labels]:
    """Labels of each recorded series; recordings of recordings need a few rounds."""
    recorded = [rule for rule in found if rule.kind == "record"]
    known: dict[str, Labels] = {rule.name: ANY for rule in recorded}
    for _ in range(5):
        fresh: dict[str, Labels] = {}
        for rule in recorded:
            group = rule.group.get("labels")
            added = [*rule.labels, *(group if isinstance(group, dict) else ())]
            carried = labels(rule.expr, known).also(added)
            fresh[rule.name] = fresh[rule.name].union(carried) if rule.name in fresh else carried
        if fresh == known:
            break
        known = fresh
    return known


def _filled(found: Sequence[Rule]) -> frozenset[str]:
    """Recorded series all whose rules say ``or``, or read nothing but such series, over a few recordings."""
    recorded = [(rule.name, says_or(rule.expr), read_names(rule.expr)) for rule in found if rule.kind == "record"]
    filled: set[str] = set()
    for _ in range(5):
        lacking = {name for name, filling, read in recorded if not filling and not read <= filled}
        fresh = {name for name, _, _ in recorded} - lacking
        if fresh == filled:
            break
        filled = fresh
    return frozenset(filled)
