"""Grafana's files: the dashboards, and the provisioning of them and of the data source."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.dashboards.boards import BOARDS
from k3observe.dashboards.model import DATASOURCE_UID
from k3observe.dashboards.scope import interval
from k3observe.plan import Plan
from k3observe.render.alerts import dashboard_uid
from k3observe.render.text import header, to_json, to_yaml


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield the dashboards and their provisioning; nothing where ``outputs.grafana`` is off."""
    if not plan.config.outputs.grafana:
        return
    from k3observe.dashboards.grafana import dashboard

    for board in BOARDS:
        document = dashboard(plan, board, list(BOARDS))
        yield f"grafana/dashboards/{dashboard_uid(plan.config, board.name)}.json", to_json(document)
    yield from _provisioning(plan)


def _provisioning(plan: Plan) -> Iterator[tuple[str, bytes]]:
    config = plan.config
    datasource = {
        "name": "Prometheus (k3observe)",
        "type": "prometheus",
        "uid": DATASOURCE_UID,
        "access": "proxy",
        "url": f"http://{config.prometheus.address}",
        "jsonData": {"httpMethod": "POST", "timeInterval": str(interval(config))},
    }
    provider = {
        "name": f"k3observe-{config.stack}",
        "folder": f"k3observe {config.stack}",
        "type": "file",
        "disableDeletion": False,
        "allowUiUpdates": False,
        "updateIntervalSeconds": 30,
        "options": {"path": "/etc/grafana/dashboards", "foldersFromFilesStructure": False},
    }
    for kind, name, document in (("datasources", "prometheus", datasource), ("dashboards", config.stack, provider)):
        key = "datasources" if kind == "datasources" else "providers"
        text = header(config) + to_yaml({"apiVersion": 1, key: [document]})
        yield f"grafana/provisioning/{kind}/k3observe-{name}.yml", text.encode()
