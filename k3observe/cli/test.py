"""``k3observe test``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("test")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("."))
def command(folder: Path) -> int:
    """Run the unit tests of the rendered alerts with `promtool test rules`.

    \b
    k3observe test            # the bundle in this folder
    k3observe test bundle
    """
    from k3observe import bundle
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.lint.programs import run_tests

    bundle.recover(folder)
    files = sorted((folder / "prometheus" / "tests").glob("*.yml"))
    if not files:
        raise ConfigError([Problem("holds no tests", file=str(folder / "prometheus" / "tests"),
                                   fix="run `k3observe render` first, or name the folder of the bundle")])  # fmt: skip
    ok, output = run_tests(files)
    click.echo(output)
    return 0 if ok else 1
