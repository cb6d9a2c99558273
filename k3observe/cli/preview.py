"""``k3observe preview``."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from k3observe.cli.stack import config_option, load_plan

if TYPE_CHECKING:
    from k3observe.plan import Plan
    from k3observe.preview.prometheus import Span


@click.command("preview")
@config_option
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("preview.html"), show_default=True,
              help="The page.")  # fmt: skip
@click.option("--prometheus", "url", metavar="URL", help="The Prometheus that has the data.")
@click.option("--demo", is_flag=True, help="Simulated services instead of yours; takes three minutes.")
@click.option("--last", default="1h", show_default=True, help="The time to show, back from now.")
@click.option("--png", type=click.Path(path_type=Path), metavar="DIR",
              help="Also write a picture of each dashboard, through Chromium.")  # fmt: skip
@click.option("--theme", type=click.Choice(["light", "dark"]), default="dark", show_default=True,
              help="Of the pictures; the page follows the browser and has a switch.")  # fmt: skip
@click.option("--language", type=click.Choice(["en", "zh-CN"]), default="en", show_default=True,
              help="Of --demo; else the configuration says it.")  # fmt: skip
def command(
    file: Path, output: Path, url: str | None, demo: bool, last: str, png: Path | None, theme: str, language: str
) -> int:
    """Lay the dashboards out as one HTML page and draw every panel, without Grafana.

    The page runs no server and loads nothing: it can be opened from a file and sent around. Exit code 1 where the
    Prometheus refused a query.

    \b
    k3observe preview --prometheus http://127.0.0.1:9090
    k3observe preview --demo --png pictures
    """
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.preview.chromium import ChromiumError, find

    if bool(url) == demo:
        raise ConfigError([Problem("needs one of --prometheus URL and --demo", file="preview")])
    if png is not None:
        try:
            find()
        except ChromiumError as error:
            raise ConfigError([Problem(str(error), file="--png")]) from None
    if url is not None:
        _, plan = load_plan(file)
        return draw(plan, url, url, _seconds(last), output, png, theme)
    with _simulated(language) as (plan, address):
        return draw(plan, address, _demo_source(language), DEMO_SECONDS, output, png, theme)


DEMO_SECONDS = 170.0


def draw(plan: Plan, url: str, source: str, seconds: float, output: Path, png: Path | None, theme: str) -> int:
    """Ask a Prometheus for what the dashboards of a plan show, and write the page and its pictures."""
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.preview.chromium import ChromiumError, shot
    from k3observe.preview.evaluate import evaluate
    from k3observe.preview.page import page
    from k3observe.preview.prometheus import Prometheus, UnreachableError
    from k3observe.render import grafana

    if not url.startswith(("http://", "https://")):
        raise ConfigError([Problem("is no address of a Prometheus", value=url, fix="use http://HOST:9090")])
    rendered = {path: content for path, content in grafana.files(plan) if path.endswith(".json")}
    if not rendered:
        raise ConfigError([Problem("has no dashboards: outputs.grafana is off", file="k3observe.yaml")])
    interval = max(plan.config.prometheus.scrape_interval.seconds, plan.config.prometheus.evaluation_interval.seconds)
    span = _span(seconds, interval)
    try:
        result = evaluate([json.loads(content) for content in rendered.values()], Prometheus(url), span, interval)
    except UnreachableError as error:
        raise ConfigError([Problem(f"no Prometheus answers: {error}", value=url, file="--prometheus")]) from None
    output.write_text(page(result, span, source, plan.config.language), encoding="utf-8")
    click.echo(f"{output}: {len(result.boards)} dashboards, {output.stat().st_size // 1024} KiB")
    for failure in result.failures:
        click.echo(f"failed: {failure}", err=True)
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for board in result.boards:
            name = board["uid"].removeprefix(f"k3-{plan.config.stack}-")
            try:
                shot(output, board["uid"], theme, png / f"{name}.png")
            except ChromiumError as error:
                raise ConfigError([Problem(str(error), file="--png")]) from None
            click.echo(png / f"{name}.png")
    return 1 if result.failures else 0


def _span(seconds: float, interval: float) -> Span:
    from k3observe.preview.prometheus import Span

    step = max(interval, seconds / 240)
    end = time.time()
    return Span(end - step * int(seconds / step), end, step)


def _seconds(text: str) -> float:
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.config.values import Duration

    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise ConfigError([Problem(str(error), value=text, file="--last")]) from None


def _demo_source(language: str) -> str:
    return "模拟服务" if language == "zh-CN" else "simulated services"


@contextmanager
def _simulated(language: str) -> Iterator[tuple[Plan, str]]:
    from k3observe.config.errors import ConfigError, Problem
    from k3observe.drill.binaries import BinaryMissingError
    from k3observe.preview.demo import simulated

    with tempfile.TemporaryDirectory(prefix="k3observe-preview-") as folder:
        try:
            with simulated(Path(folder), language, say=lambda text: click.echo(text, err=True)) as (plan, server):
                yield plan, server.url
        except (BinaryMissingError, RuntimeError) as error:
            raise ConfigError([Problem(str(error), file="--demo")]) from None
