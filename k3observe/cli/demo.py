"""``k3observe demo``."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import click


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave everything running, with its addresses, until Ctrl-C.")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path),
              help="An empty folder for configuration, bundle and logs; default a new temporary one.")  # fmt: skip
def command(keep: bool, folder: Path | None) -> int:
    """Show the whole product on this machine, in about two minutes.

    A simulated Kimi K3 service with real sidecars is scraped by a real Prometheus, on a bundle rendered by
    `k3observe render`. Three faults follow, each with its alert and its notification.

    \b
    k3observe demo
    k3observe demo --keep
    """
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.drill.binaries import BinaryMissingError
    from k3observe.drill.story import StoryError, running, tell

    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise ConfigError([Problem("is not empty", file=str(folder), fix="name a new folder with -o")])
    folder = (folder or Path(tempfile.mkdtemp(prefix="k3observe-demo-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: a shell starts what it puts behind `&` with it ignored
        signal.signal(number, signal.default_int_handler)
    try:
        with running(folder, click.echo) as here:
            tell(here, click.echo)
            click.echo(f"\nEverything worked. Files and logs are in {folder}")
            if keep:
                for name, url in (("Prometheus", here.prometheus.url), ("Alertmanager", here.alertmanager.url)):
                    click.echo(f"{name:13} {url}")
                click.echo("Ctrl-C ends it")
                while True:
                    time.sleep(1)
    except (StoryError, BinaryMissingError, RuntimeError) as error:
        click.echo(f"k3observe demo: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("ended; nothing is left running")
        return 0 if keep else 130
    return 0
