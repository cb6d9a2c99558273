"""Entry point. Sub-commands are imported when they are called, so that ``--version`` costs nothing else."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from k3observe.version import __version__

COMMANDS = {
    "init": "Write a commented configuration, from a launch command if you have one.",
    "render": "Render the bundle: Prometheus, Alertmanager, Grafana, Kubernetes, runbooks.",
    "check": "Validate configuration and bundle.",
    "test": "Run the rendered alert unit tests.",
    "explain": "Say what is armed and what is not, and why; or explain one alert.",
    "doctor": "Read /metrics and say which signals, alerts and panels are blind, and why.",
    "schema": "Print the JSON schema of the configuration.",
    "preview": "Lay the dashboards out as one HTML page, without Grafana.",
    "demo": "Show everything on this machine: a fault, the alert, the notification.",
}


class _Lazy(click.Group):
    """A group that knows its commands by name and loads one only to run it or to print its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"k3observe.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="k3observe", message="%(prog)s %(version)s")
def cli() -> None:
    """Monitoring and alerting of mixture-of-experts model serving, from one YAML file.

    \b
    k3observe init --from-command 'vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8'
    k3observe render && k3observe check && k3observe test
    k3observe doctor http://127.0.0.1:8000/metrics
    """


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the command; bad input ends with exit code 2 and a message, never with a traceback."""
    # nearly all that a command makes it keeps to its end, where looking through it again and again finds nothing
    gc.set_threshold(50_000)
    try:
        code = cli.main(args=arguments, prog_name="k3observe", standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except OSError as error:
        # a full disk behind a redirected output, say; a reader that went away (head) is click's to handle
        click.echo(f"k3observe: {error.filename or 'output'}: cannot be used: {error.strerror}", err=True)
        code = 2
    except Exception as error:
        from k3observe.config.errors import ConfigError

        if not isinstance(error, ConfigError):
            raise
        for problem in error.problems:
            click.echo(f"k3observe: {problem}", err=True)
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
