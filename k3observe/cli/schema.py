"""``k3observe schema``."""

from __future__ import annotations

import json

import click


@click.command("schema")
def command() -> int:
    """Print the JSON schema of the configuration.

    \b
    k3observe schema > k3observe.schema.json
    # then, as the first line of k3observe.yaml:
    # yaml-language-server: $schema=k3observe.schema.json
    """
    from k3observe.config.model import Config

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "k3observe configuration"}
    click.echo(json.dumps(schema | Config.model_json_schema(), indent=2, ensure_ascii=False))
    return 0
