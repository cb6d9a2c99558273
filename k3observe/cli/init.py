"""``k3observe init``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

_FILES = (".sh", ".txt", ".yaml", ".yml", ".json")


@click.command("init")
@click.option("--from-command", "source", metavar="COMMAND|FILE|-",
              help="A launch command, a file that holds one, or - for standard input: a script, a manifest of "
              "Kubernetes or Compose, MindIE's config.json.")  # fmt: skip
@click.option("-o", "--output", default="k3observe.yaml", show_default=True, help="The file to write; - prints it.")
@click.option("--language", type=click.Choice(["en", "zh-CN"]), default="en", show_default=True,
              help="Of its comments and notes, and of the alerts and dashboards it renders.")  # fmt: skip
def command(source: str | None, output: str, language: str) -> int:
    """Write a commented configuration.

    It says what the launch command says. What that cannot tell (version, addresses) is assumed, marked and reported.

    \b
    k3observe init
    k3observe init --language zh-CN
    k3observe init --from-command launch.sh           # or deployment.yaml, compose.yaml, config.json
    k3observe init --from-command 'vllm serve moonshotai/Kimi-K3 -tp 8 --max-num-seqs 16'
    """
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.config.launch import read
    from k3observe.config.starter import EXAMPLE, starter

    text, assumed = starter(read(*_command(source)) if source is not None else EXAMPLE, language)
    chinese = language == "zh-CN"
    if output == "-":
        click.echo(text, nl=False)
    else:
        try:
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise ConfigError([Problem("exists already", file=output, fix="name another file with -o")]) from None
        except OSError as error:
            raise ConfigError([Problem(f"cannot be written: {error.strerror}", file=output)]) from None
        try:
            with open(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            os.unlink(output)
            raise ConfigError([Problem(f"cannot be written: {error.strerror}", file=output)]) from None
        click.echo(f"已写入 {output}；下一步：填写 targets，然后执行 `k3observe render`" if chinese else
                   f"{output} written; next: fill in targets, then `k3observe render`", err=True)  # fmt: skip
    for line in assumed:
        click.echo(f"{'提示：' if chinese else 'note: '}{line}", err=True)
    return 0


def _command(source: str) -> tuple[str, str]:
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.config.source import read_bounded

    if source == "-":
        return sys.stdin.buffer.read(1 << 20).decode("utf-8", "replace"), "standard input"
    if "\n" not in source and len(source) < 4096 and (Path(source).is_file() or source.endswith(_FILES)):
        if not Path(source).exists():
            raise ConfigError([Problem("does not exist", file=source,
                                       fix="name the script that starts the engine, or give its command")])  # fmt: skip
        return read_bounded(Path(source)), source
    return source, "--from-command"
