"""``k3observe check``."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("check")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("."))
@click.option("-f", "--file", "file", type=click.Path(path_type=Path),
              help="The configuration; default k3observe.yaml in DIR, else in this folder, if any.")  # fmt: skip
@click.option("--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(folder: Path, file: Path | None, form: str) -> int:
    """Validate the configuration and the files of a folder: those rendered, and your own.

    Reads rule files, PrometheusRule objects, scrape configurations, Alertmanager configurations and dashboards below
    DIR (or one file) and looks for what passes every syntax check and still never fires, always fires or misleads.
    promtool and amtool give their verdict too where they are installed. Exit code 1 where something was found.

    A comment `# k3observe disable promql/rate-window` in a rule switches a check off for it; at the top, for the file.

    \b
    k3observe check
    k3observe check bundle -f k3observe.yaml
    k3observe check /etc/prometheus --output json
    """
    from k3observe import bundle
    from k3observe.catalogue.loader import load as load_catalogue
    from k3observe.cli.stack import load_plan
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.config.source import read_bounded
    from k3observe.lint.configured import surroundings
    from k3observe.lint.external import external
    from k3observe.lint.finding import Finding
    from k3observe.lint.folder import Document, documents
    from k3observe.lint.routing import findings as configured
    from k3observe.lint.run import lint

    if not folder.exists():
        raise ConfigError([Problem("does not exist", file=str(folder))])
    if folder.is_dir() and bundle.recover(folder):
        click.echo(f"{folder}: an interrupted render was completed or undone", err=True)
    places = (folder / "k3observe.yaml", Path("k3observe.yaml"))
    file = file or next((place for place in places if place.is_file()), None)
    loaded, plan = load_plan(file) if file else (None, None)
    found = list(documents(folder))
    if plan is None and not found:
        raise ConfigError([Problem("holds nothing to check", file=str(folder),
                                   fix="name a folder of rules or configurations, or a configuration with -f")])
    around = surroundings(plan.catalogue if plan else load_catalogue(), plan.config if plan else None)
    said, skipped = external([item for item in found if isinstance(item, Document)])
    findings = lint([*found, *said], around)
    if file and loaded and plan:
        findings = [*configured(loaded, read_bounded(file), plan), *findings]
    files = len({item.file if isinstance(item, Finding) else item.located.file for item in found})
    if form == "json":
        document = {"files": files, "findings": [finding.data() for finding in findings], "skipped": skipped}
        click.echo(json.dumps(document, ensure_ascii=False, indent=2))
        return 1 if findings else 0
    for finding in findings:
        click.echo(str(finding))
    for line in skipped:
        click.echo(f"skipped: {line}", err=True)
    checked = ([str(file)] if file else []) + [f"{files} files in {folder}"]
    click.echo(f"{' and '.join(checked)} checked, {len(findings) or 'nothing'} found", err=True)
    return 1 if findings else 0
