"""Dashboards as ConfigMaps, which the sidecar of Grafana's chart loads by their label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from k3observe.config.model import Config
from k3observe.render.kubernetes.objects import Object, dns_name, file, named, settings

LIMIT = 1_000_000
"""Bytes of a dashboard: the API server refuses objects of more than 1 MiB."""
BOARDS = "grafana/dashboards/"


class TooLargeError(ValueError):
    """A dashboard does not fit into a ConfigMap."""


def files(config: Config, bundle: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield one file for each dashboard of the bundle. Raises TooLargeError."""
    for path, content in bundle.items():
        name = PurePosixPath(path).name
        if path.startswith(BOARDS) and name.endswith(".json"):
            if len(content) > LIMIT:
                raise TooLargeError(f"{path}: {len(content)} bytes do not fit into a ConfigMap: split the stack")
            board = dns_name(PurePosixPath(name).stem)
            yield f"dashboard-{board}.yaml", file(config, [_configmap(config, name, content)])


def _configmap(config: Config, name: str, content: bytes) -> Object:
    document = named(
        config, "v1", "ConfigMap", dns_name(config.stack, "dashboard", PurePosixPath(name).stem),
        annotations={"grafana_folder": settings(config).dashboard_folder})  # fmt: skip
    document["metadata"]["labels"]["grafana_dashboard"] = "1"
    return {**document, "data": {name: content.decode()}}
