"""Rules as objects: PrometheusRule or VMRule, one for each rule file of the bundle, word for word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from k3observe.config.model import Config
from k3observe.render.kubernetes.objects import dns_name, named, settings
from k3observe.render.text import header, to_yaml

RULES = "prometheus/rules/"


def files(config: Config, bundle: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the rules. Their unit tests stay beside them in ``prometheus/tests``: an operator would refuse them."""
    objects = [_object(config, path, text.decode()) for path, text in bundle.items() if path.startswith(RULES)]
    if objects:
        name = "prometheusrules" if settings(config).operator == "prometheus" else "vmrules"
        yield f"{name}.yaml", (header(config) + "---\n".join(objects)).encode()


def _object(config: Config, path: str, text: str) -> str:
    """The rule file's own text, comments included, below a head."""
    prometheus = settings(config).operator == "prometheus"
    api, kind = (
        ("monitoring.coreos.com/v1", "PrometheusRule") if prometheus
        else ("operator.victoriametrics.com/v1beta1", "VMRule")
    )  # fmt: skip
    head = to_yaml({**named(config, api, kind, dns_name(PurePosixPath(path).stem)), "spec": None})
    body = text[text.index("groups:\n"):]
    return head.replace("spec: null\n", "spec:\n") + "".join(
        f"  {line}" if line.strip() else line for line in body.splitlines(keepends=True))


def mimir(config: Config, bundle: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """All groups in one file, whose name mimirtool takes for the ruler's namespace: a plain rule file otherwise."""
    groups = [
        text.decode().partition("groups:\n")[2] for path, text in bundle.items() if path.startswith(RULES)
    ]  # fmt: skip
    note = "# mimirtool rules sync --address=... --id=... prometheus/mimir/*.yml\n"
    yield f"prometheus/mimir/{config.stack}.yml", (
        header(config) + note + "groups:\n" + "".join(groups)).encode()
