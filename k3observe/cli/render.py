"""``k3observe render``."""

from __future__ import annotations

from pathlib import Path

import click

from k3observe.cli.stack import config_option, load_plan


@click.command("render")
@config_option
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("."), show_default=True,
              help="The folder of the bundle.")  # fmt: skip
@click.option("--only", help="Some outputs, comma separated, e.g. prometheus,grafana.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where the folder differs.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change, exit 1 where it would.")
@click.option("--stdout", is_flag=True, help="Print the files; of Kubernetes the objects to apply.")
def command(file: Path, folder: Path, only: str | None, check: bool, diff: bool, stdout: bool) -> int:
    """Render the bundle.

    The same configuration gives the same bytes on every machine. Files are replaced as a set: after a kill the folder
    holds the old or the new bundle. What is no longer rendered is removed, but only if k3observe wrote it.

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
    for change in changed:
        click.echo(f"{change.kind:7} {change.path}")
    touched = sum(change.path != bundle.LOCK for change in changed)
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
            click.echo(f"{change.kind:7} {change.path}")
    return 1 if changed else 0


