"""Alertmanager configurations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from k3observe.config.errors import did_you_mean
from k3observe.config.source import Located
from k3observe.lint.finding import Check, Fault
from k3observe.lint.surroundings import Surroundings

_SECRETS = frozenset({
    "routing_key", "service_key", "api_secret", "api_key", "auth_password", "auth_secret", "password", "bot_token",
    "token", "user_key", "slack_api_url", "smtp_auth_password", "opsgenie_api_key", "wechat_api_secret", "credentials",
    "victorops_api_key", "secret_key", "bearer_token",
})  # fmt: skip


# aliases make a small file large for whoever walks through all of it
_MOST = 100_000


def unknown_receiver(document: Located, around: Surroundings) -> Iterator[Fault]:
    """Alertmanager refuses a route to a receiver that is not defined."""
    receivers = document.data.get("receivers")
    listed = receivers if isinstance(receivers, list) else []
    known = {str(item.get("name")) for item in listed if isinstance(item, dict)}
    for route, path in islice(_routes(document.data.get("route"), ("route",)), _MOST):
        name = route.get("receiver")
        if isinstance(name, str) and name not in known:
            yield Fault("no receiver has this name", name, did_you_mean(name, known),
                        document.line((*path, "receiver")))  # fmt: skip


def inline_secret(document: Located, around: Surroundings) -> Iterator[Fault]:
    """A configuration is committed, diffed and shown on a status page: no place for a secret."""
    for path, value in islice(_leaves(document.data, ()), _MOST):
        field = next((step for step in reversed(path) if isinstance(step, str)), "")
        secret = field in _SECRETS or (field == "api_url" and "slack_configs" in path)
        if isinstance(value, str) and value and (secret or _carries_password(value)):
            yield Fault("a secret stands in the file", field, f"use {field}_file", document.line(path))


def _carries_password(text: str) -> bool:
    if "://" not in text or "@" not in text:
        return False
    try:
        return bool(urlsplit(text).password)
    except ValueError:
        return False


def _routes(route: Any, path: tuple[str | int, ...]) -> Iterator[tuple[dict[str, Any], tuple[str | int, ...]]]:
    if isinstance(route, dict):
        yield route, path
        children = route.get("routes")
        for index, child in enumerate(children if isinstance(children, list) else []):
            yield from _routes(child, (*path, "routes", index))


def _leaves(data: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _leaves(value, (*path, key))
    else:
        yield path, data


CHECKS = (
    Check("alertmanager/unknown-receiver", unknown_receiver),
    Check("alertmanager/inline-secret", inline_secret),
)
