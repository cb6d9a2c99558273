"""Stacks to render, and what renders them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from k3observe.cli.stack import load_plan
from k3observe.render.bundle import render

Render = Callable[..., dict[str, bytes]]

SERVICE = {
    "name": "kimi-k3",
    "model": {"preset": "kimi-k3"},
    "engine": {"name": "vllm", "version": "0.33", "args": {
        "tensor_parallel": 8, "expert_parallel": True, "eplb": True, "eplb_log_balancedness": True, "max_num_seqs": 16,
        "prefix_caching": True}},
    "discovery": {"kubernetes": {"namespace": "llm", "selector": {"app": "kimi-k3"}, "port": 8000, "workload": {
        "kind": "Deployment", "name": "kimi-k3", "container": "vllm"}}},
    "replicas": {"expected": 2, "min": 2, "max": 4},
    "accelerators": {"kind": "nvidia", "per_node": 8},
    "sidecar": {"collect": ["gpu", "experts", "kv-cache"]},
}  # fmt: skip


def merged(base: object, change: object) -> object:
    """``base`` with ``change`` laid over it, section by section; None takes a field away."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    found = {key: merged(base.get(key), value) if key in base else value for key, value in change.items()}
    return {key: value for key, value in {**base, **found}.items() if value is not None}


def stack(service: dict | None = None, outputs: dict | None = None, **own: object) -> dict:
    """A stack of one service in Kubernetes, with changes."""
    return {
        "version": 1, "stack": "kimi-k3", "prometheus": {"version": "3.5", "scrape_interval": "10s"},
        "alertmanager": {"version": "0.33"}, "services": [merged(SERVICE, service or {})],
        "outputs": {"kubernetes": {"release_label": "kps"}} if outputs is None else outputs, **own,
    }  # fmt: skip


@pytest.fixture
def rendered(tmp_path: Path) -> Render:
    """Render a configuration given as data."""

    def run(config: dict, only: str | None = None) -> dict[str, bytes]:
        file = tmp_path / "k3observe.yaml"
        file.write_text(yaml.safe_dump(config))
        return render(load_plan(file)[1], frozenset(only.split(",")) if only else None)

    return run


def objects(bundle: dict[str, bytes], prefix: str = "kubernetes/") -> list[dict]:
    """The documents to apply."""
    from k3observe.render.kubernetes import is_object

    return [
        document for path, content in bundle.items() if path.startswith(prefix) and is_object(path)
        for document in yaml.load_all(content, yaml.CSafeLoader)
    ]  # fmt: skip


def write(bundle: dict[str, bytes], folder: Path) -> Path:
    """Write a bundle without its lock."""
    for path, content in bundle.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def kubectl() -> Path:
    import shutil

    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is missing")
    return Path(found)
