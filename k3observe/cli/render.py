"""``k3observe render``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from k3observe.cli.stack import config_option, load_plan

if TYPE_CHECKING:
    from k3observe.bundle import Change

LISTED = 20
"""Up to so many changes are told one by one; more of them nobody reads."""


@click.command("render")
@config_option
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("."), show_default=True,
              help="The folder of the bundle.")  # fmt: skip
@click.option("--only", help="Some outputs, comma separated, e.g. prometheus,grafana.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where the folder differs.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change, exit 1 where it would.")
@click.option("--stdout", is_flag=True, help="Print the files; of Kubernetes the objects to apply.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each file, however many change.")
def command(
    file: Path, folder: Path, only: str | None, check: bool, diff: bool, stdout: bool, verbose: bool
) -> int:
    """Render the bundle.

    The same configuration gives the same bytes on every machine. Files are replaced as a set: after a kill the folder
    holds the old or the new bundle. What is no longer rendered is removed, but only if k3observe wrote it.

    Each file that changed is a line ("add     PATH"); more than 20 of them are summed up by folder. Scripts read
    --verbose or --check, which print the lines always.

    \b
    k3observe render                                  # into this folder
    k3observe render -o bundle --check                # exit 1 if the bundle is not what the file says
    k3observe render --only kubernetes --stdout | kubectl apply -f -
    """
    from k3observe import bundle
    from k3observe.cli.explain import unarmed, unheard
    from k3observe.config.errors import ConfigError, Problem, did_you_mean
    from k3observe.render.bundle import OUTPUTS, render
    from k3observe.render.kubernetes import is_object

    wanted = frozenset(only.split(",")) if only else None
    if wanted and (unknown := sorted(wanted - set(OUTPUTS))):
        fix = did_you_mean(unknown[0], OUTPUTS)
        raise ConfigError([Problem("is no output", value=unknown[0], fix=fix, file="--only")])
    _, plan = load_plan(file)
    files = render(plan, wanted)
    if stdout:
        for path, content in files.items():
            if path.startswith("kubernetes/") and not is_object(path):
                continue
            click.echo(f"---\n# Source: {path}")
            click.echo(content, nl=False)
        return 0
    if check or diff:
        return _compare(folder, files, wanted, diff)
    changed = bundle.write(folder, files, wanted)
    touched = sum(change.path != bundle.LOCK for change in changed)
    for line in map(_line, changed) if verbose or touched <= LISTED else _folders(changed):
        click.echo(line)
    click.echo(f"{len(files)} files in {folder}, {touched} changed", err=True)
    for line in (*unarmed(plan), *unheard(plan)):
        click.echo(line, err=True)
    return 0


def _compare(folder: Path, files: dict[str, bytes], wanted: frozenset[str] | None, diff: bool) -> int:
    from k3observe import bundle

    if bundle.unfinished(folder):
        click.echo(f"{folder}: an interrupted render is unfinished; run `k3observe render` to complete it", err=True)
        return 1
    changed = bundle.changes(folder, files, wanted)
    for change in changed:
        if diff and change.path == bundle.LOCK and len(changed) > 1:
            continue  # its hashes tell nothing that the files themselves do not
        if diff:
            click.echo(change.diff(), nl=False)
        else:
            click.echo(_line(change))
    return 1 if changed else 0


def _line(change: Change) -> str:
    return f"{change.kind:7} {change.path}"


def _folders(changed: Sequence[Change]) -> Iterator[str]:
    """What happened in each folder, in order; the lock file, which changes with every other, is none."""
    words = {"add": "added", "change": "changed", "remove": "removed"}
    counts: dict[str, Counter[str]] = {}
    for change in changed:
        if "/" in change.path:
            counts.setdefault(str(PurePosixPath(change.path).parent), Counter())[change.kind] += 1
    for folder, kinds in sorted(counts.items()):
        yield f"{folder}: {', '.join(f'{kinds[kind]} {word}' for kind, word in words.items() if kinds[kind])}"
