"""``remote_write``: the stores that receive the samples, with secrets by file only."""

from __future__ import annotations

from typing import Any

from k3observe.config.model import Config, RemoteWrite

_QUEUE = ("capacity", "max_shards", "max_samples_per_send", "batch_send_deadline", "max_backoff")
_RECORDED = {"source_labels": ["__name__"], "regex": "k3:.*|ALERTS|ALERTS_FOR_STATE|up", "action": "keep"}


def write(config: Config) -> list[dict[str, Any]]:
    """The stores, as prometheus.yml has them."""
    return [_target(target) for target in config.prometheus.remote_write]


def _target(target: RemoteWrite) -> dict[str, Any]:
    document: dict[str, Any] = {"url": target.url}
    if target.headers:
        document["headers"] = dict(sorted(target.headers.items()))
    if target.basic_auth_user and target.password_file:
        document["basic_auth"] = {"username": target.basic_auth_user, "password_file": target.password_file}
    if target.bearer_token_file:
        document["authorization"] = {"credentials_file": target.bearer_token_file}
    if target.tls_ca_file:
        document["tls_config"] = {"ca_file": target.tls_ca_file}
    queue = {name: value for name in _QUEUE if (value := getattr(target.queue, name)) is not None}
    if queue:
        document["queue_config"] = {name: str(v) if isinstance(v, str) else v for name, v in queue.items()}
    if target.series == "recorded":
        document["write_relabel_configs"] = [_RECORDED]
    return document
