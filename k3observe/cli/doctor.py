"""``k3observe doctor``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import click

if TYPE_CHECKING:
    from k3observe.catalogue import Catalogue, Text, Version
    from k3observe.live.doctor import Reading, Report
    from k3observe.plan import Plan

_WORDS = {
    "en": {"source": "source", "signal": "signal", "state": "state", "value": "value", "series": "series",
           "metric": "metric", "why": "why, and what to do", "alert": "alert", "armed": "armed", "blind": "blind",
           "untold": "not told by this device",
           "unplanned": "not rendered", "unknown": "unknown version", "none": "not in these sources",
           "panels": "panels", "panel": "empty panel", "dashboard": "dashboard",
           "remedies": "what arms more, the most helpful first:"},
    "zh-CN": {"source": "数据源", "signal": "信号", "state": "状态", "value": "值", "series": "序列", "metric": "指标",
              "why": "原因与处理", "alert": "告警", "armed": "有效", "blind": "失效", "unplanned": "未生成",
              "untold": "该设备不提供",
              "unknown": "版本未知", "none": "所给数据源未提供", "panels": "面板", "panel": "空面板",
              "dashboard": "看板", "remedies": "如何启用更多告警（收效大者在前）："},
}  # fmt: skip
_STATES = {"alive": "正常", "unused": "未使用", "untold": "设备不提供", "missing": "缺失", "wrong": "异常"}
_COLOURS = {"alive": "green", "unused": "yellow", "untold": "yellow", "missing": "red", "wrong": "magenta"}


@click.command("doctor")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-f", "--file", "file", type=click.Path(path_type=Path), help="Check against this configuration.")
@click.option("--engine", help="What the sources are, where it is not recognised (vllm, sglang, mindie, ...).")
@click.option("--engine-version", "version", help="Version of the engine, instead of the one detected.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="Authorities that signed the certificates of sources.")
@click.option("--language", type=click.Choice(["en", "zh-CN"]), help="Default: the configuration's, else en.")
@click.option("--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    sources: tuple[str, ...],
    file: Path | None,
    engine: str | None,
    version: str | None,
    ca_file: Path | None,
    language: str | None,
    form: str,
) -> int:
    """Say which signals and alerts are alive in /metrics, which are blind, and the one change that opens their eyes.

    SOURCE is a URL (http://host:8000/metrics), host:port, a captured file, or - for standard input; give the engine
    and its sidecars together. Exit code 0 when every planned alert is armed or needs what the
    device does not have, 1 otherwise, 2 for unreadable input.

    \b
    k3observe doctor http://10.0.0.1:8000/metrics http://10.0.0.1:19303/metrics
    k3observe doctor -f k3observe.yaml 10.0.0.1:8000 10.0.0.1:19303
    curl -s http://10.0.0.1:8000/metrics | k3observe doctor - --output json
    """
    from k3observe.cli.stack import load_plan
    from k3observe.config.errors import ConfigError, Problem, did_you_mean
    from k3observe.dashboards.boards import BOARDS
    from k3observe.live.doctor import examine
    from k3observe.live.exposition import SourceError
    from k3observe.rules import load as load_rules

    plan: Plan | None = load_plan(file)[1] if file else None
    catalogue = _catalogue(plan)
    if engine is not None and engine not in catalogue.sources:
        raise ConfigError([Problem("is not known", value=engine, fix=did_you_mean(engine, catalogue.sources),
                                   file="--engine")])  # fmt: skip
    try:
        readings = _read(sources, catalogue, engine, _version(version), ca_file)
    except SourceError as error:
        click.echo(f"k3observe: {error}", err=True)
        return 2
    pack = plan.pack if plan else load_rules()
    report = examine(readings, catalogue, pack, time.time(), plan, BOARDS)
    language = language or (plan.config.language if plan else "en")
    if form == "json":
        click.echo(json.dumps(document(report, language), ensure_ascii=False, indent=2))
    else:
        _show(report, catalogue, language)
    return 0 if report.healthy else 1


def _catalogue(plan: Plan | None) -> Catalogue:
    from k3observe.catalogue import load

    return plan.catalogue if plan else load()


def _version(text: str | None) -> Version | None:
    from k3observe.catalogue import Version
    from k3observe.config.errors import ConfigError, Problem

    try:
        return Version.parse(text) if text is not None else None
    except ValueError:
        raise ConfigError([Problem("is no version", value=text, fix="write it like 0.33 or 0.33.0",
                                   file="--engine-version")]) from None  # fmt: skip


def _read(
    sources: tuple[str, ...], catalogue: Catalogue, engine: str | None, asked: Version | None, ca_file: Path | None
) -> list[Reading]:
    from k3observe.live.detect import identify, wanted_names
    from k3observe.live.doctor import Reading
    from k3observe.live.exposition import SourceError
    from k3observe.live.exposition_source import read
    from k3observe.live.version_endpoint import version_of

    wanted = wanted_names(catalogue)
    readings = []
    if sources.count("-") > 1:
        raise SourceError("-: standard input can be read once: give the others as files")
    for source in sources:
        exposition = read(source, wanted.__contains__, sys.stdin.buffer, ca_file)
        identity = identify(exposition, catalogue)
        if engine is not None and (identity is None or catalogue.sources[identity.source].kind == "engine"):
            identity = identify(exposition, catalogue, engine)
        if identity is None:
            known = ", ".join(sorted(name for name in catalogue.sources if name != "prometheus"))
            some = ", ".join(list(exposition.counts)[:3])
            raise SourceError(f"{source}: is of no known engine or exporter: {some}, ...: name it with --engine "
                              f"({known})")  # fmt: skip
        is_engine = catalogue.sources[identity.source].kind == "engine"
        told = version_of(exposition.url, ca_file) if exposition.url and is_engine else None
        if told is not None:
            identity = identify(exposition, catalogue, identity.source, told) or identity
        readings.append(Reading(exposition, identity, asked if is_engine else None))
    return readings


def document(report: Report, language: str) -> dict[str, Any]:
    """The report as plain data."""

    def text(sentence: Text | None) -> str | None:
        return sentence.get(language) if sentence else None

    return {
        "sources": [
            {"source": reading.exposition.source, "engine": reading.identity.source,
             "version": {"min": str(oldest) if oldest else None, "max": str(newest) if newest else None}}
            for reading in report.readings for oldest, newest in (reading.span,)
        ],
        "signals": [
            {"signal": row.signal, "source": row.source or None, "state": row.state, "metric": row.metric or None,
             "series": row.series, "value": row.value, "reason": text(row.reason), "fix": text(row.fix)}
            for row in report.signals
        ],
        "alerts": [
            {"alert": row.alert, "service": row.service, "state": row.state,
             "planned": row.planned, "reason": text(row.reason), "fix": text(row.fix)}
            for row in report.alerts
        ],
        "panels": [
            {"dashboard": text(row.board), "panel": text(row.panel), "state": "armed" if row.armed else "blind",
             "reason": text(row.reason), "fix": text(row.fix)}
            for row in report.panels
        ],
        "remedies": [
            {"service": row.service, "changes": [text(change) for change in row.changes], "alerts": list(row.alerts)}
            for row in report.remedies
        ],
    }  # fmt: skip


def _show(report: Report, catalogue: Catalogue, language: str) -> None:
    from k3observe.remedies import lines

    words = _WORDS[language]
    several = len(report.readings) > 1
    for reading in report.readings:
        oldest, newest = reading.span
        version = words["unknown"] if newest is None else str(newest) if oldest == newest else f"{oldest} – {newest}"
        spelling = " (vllm_x)" if reading.exposition.spelling == "underscore" else ""
        source = catalogue.sources[reading.identity.source]
        release = f" {version}" if newest is not None or source.kind == "engine" else ""
        click.echo(f"{reading.exposition.source}: {source.title}{release}{spelling}")
    for note in report.notes:
        click.echo(f"  {note.get(language)}")
    usable = {row.signal for row in report.signals if row.usable}
    # what one source lacks and another has is no news
    shown = [row for row in report.signals
             if row.source and (row.state not in ("untold", "missing") or row.signal not in usable)]
    rows = [
        [row.signal, *([row.source] if several else []), _STATES[row.state] if language != "en" else row.state,
         "" if row.value is None else f"{row.value:.6g}", str(row.series or ""), row.metric, _why(row, language)]
        for row in shown
    ]  # fmt: skip
    colours = [_COLOURS[row.state] for row in shown]
    head = [words["signal"], *([words["source"]] if several else []), words["state"], words["value"], words["series"],
            words["metric"], words["why"]]  # fmt: skip
    click.echo("")
    _table(head, rows, colours)
    nowhere = [row.signal for row in report.signals if not row.source]
    if nowhere:
        click.echo(f"{words['none']}: {', '.join(nowhere)}")
    services = any(row.service for row in report.alerts)
    click.echo("")
    _table(
        [words["alert"], *(["service"] if services else []), words["state"], words["why"]],
        [[row.alert, *([row.service or ""] if services else []),
          words[row.state if row.planned else "unplanned"], _why(row, language)]
         for row in report.alerts],
        ["green" if row.armed else "red" if row.planned and not row.untold else "yellow" for row in report.alerts],
    )  # fmt: skip
    armed = sum(panel.armed for panel in report.panels)
    click.echo(f"\n{words['panels']}: {armed}/{len(report.panels)} {words['armed']}")
    alike: dict[tuple[str, str], list[str]] = {}
    for panel in report.panels:
        if not panel.armed:
            alike.setdefault((panel.board.get(language), _why(panel, language)), []).append(panel.panel.get(language))
    if alike:
        rows = [[board, _some(panels), reason] for (board, reason), panels in alike.items()]
        _table([words["dashboard"], words["panel"], words["why"]], rows, ["red"] * len(rows))
    told = lines(report.remedies, language)
    if told:
        click.echo("\n" + "\n  ".join([words["remedies"], *told]))


def _some(names: list[str], most: int = 3) -> str:
    """The first names, so that a long list makes no column wider than a screen; JSON has all."""
    return ", ".join(names[:most]) + (f", … (+{len(names) - most})" if len(names) > most else "")


def _why(row: Any, language: str) -> str:
    parts = [text.get(language) for text in (row.reason, row.fix) if text]
    return ("; " if language == "en" else "；").join(parts)


def _table(head: list[str], rows: list[list[str]], colours: list[str]) -> None:
    """A table in colour on a terminal, aligned columns in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for number, title in enumerate(head):
            table.add_column(title, overflow="fold", no_wrap=number == 0)
        for row, colour in zip(rows, colours, strict=True):
            table.add_row(*map(escape, row), style=colour)
        Console().print(table)
        return
    widths = [max(_width(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _width(text: str) -> int:
    """Columns of a terminal: a Chinese character takes two."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)
