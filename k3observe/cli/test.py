"""``k3observe test``."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click


@click.command("test")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("."))
@click.option("--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(folder: Path, form: str) -> int:
    """Run the unit tests of the rendered alerts with `promtool test rules`.

    \b
    k3observe test            # the bundle in this folder
    k3observe test bundle --output json
    """
    from k3observe import bundle
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.lint.programs import run_tests

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else its children would go on
    bundle.recover(folder)
    files = sorted((folder / "prometheus" / "tests").glob("*.yml"))
    if not files:
        raise ConfigError([Problem("holds no tests", file=str(folder / "prometheus" / "tests"),
                                   fix="run `k3observe render` first, or name the folder of the bundle")])  # fmt: skip
    results = []
    for result in run_tests(files):
        results.append(result)
        if form == "text":
            click.echo(f"{'ok' if result.passed else 'FAILED':7} {result.file.name}")
            if not result.passed:
                click.echo(result.said)
    failed = sum(not result.passed for result in results)
    if form == "json":
        tests = [{"file": str(r.file), "passed": r.passed, "output": r.said} for r in results]
        click.echo(json.dumps({"passed": len(results) - failed, "failed": failed, "tests": tests}, indent=2))
    else:
        click.echo(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0
