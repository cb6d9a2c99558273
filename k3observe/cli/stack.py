"""What most commands begin with: the configuration, the catalogue and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from k3observe.config.errors import Problem
    from k3observe.config.loader import Loaded
    from k3observe.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """Add ``-f FILE``."""
    return click.option(
        "-f", "--file", "file", type=click.Path(path_type=Path), default=Path("k3observe.yaml"), show_default=True,
        help="The configuration.")(command)  # fmt: skip


def _catalogue(loaded: Loaded) -> Iterator[Problem]:
    """Files of the user's own that cannot be read, told where the configuration names them."""
    from k3observe.config.errors import Problem

    for index, path in enumerate(loaded.config.catalogue):
        try:
            (loaded.folder / path).open("rb").close()
        except OSError as error:
            yield Problem(f"cannot be read: {error.strerror}", ("catalogue", index), path,
                          f"paths start in the folder of {loaded.source.file}")  # fmt: skip


def load_plan(file: Path) -> tuple[Loaded, Plan]:
    """Read a configuration and plan it; raises ConfigError with everything that is wrong, says what is assumed."""
    from k3observe.catalogue.loader import load as load_catalogue
    from k3observe.config.loader import load
    from k3observe.plan import plan
    from k3observe.render import alertmanager, deployment, own_texts
    from k3observe.rules import load as load_rules
    from k3observe.versions import notes

    loaded = load(file)
    wrong = [*_catalogue(loaded), *alertmanager.problems(loaded.config), *deployment.problems(loaded.config),
             *own_texts.problems(loaded.config)]
    if wrong:
        raise loaded.error(*wrong)
    catalogue = load_catalogue([loaded.folder / path for path in loaded.config.catalogue])
    planned = plan(loaded, catalogue, load_rules())
    for note in notes(loaded, catalogue):
        click.echo(f"k3observe: warning: {note}", err=True)
    return loaded, planned
