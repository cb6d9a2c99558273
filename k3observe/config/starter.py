"""The text of a first configuration: what a launch command says, and what had to be assumed."""

from __future__ import annotations

import re
from typing import Any

from k3observe.config.launch import Launch
from k3observe.version import __version__

_PORTS = {"vllm": 8000, "vllm-ascend": 8000, "sglang": 30000, "mindie": 1027, "generic": 8000}
_NEWEST = {"vllm": "0.33", "vllm-ascend": "0.23", "sglang": "0.5.23", "mindie": "2.0"}

_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

EXAMPLE = Launch("vllm", None, "moonshotai/Kimi-K3", "kimi-k3", None, "unified", {"tensor_parallel": 8})


def starter(launch: Launch) -> tuple[str, list[str]]:
    """Return a commented configuration, and one line for each thing that was assumed or carried over."""
    assumed = list(launch.notes)
    model = launch.model or "model"
    served = launch.served_name or model
    preset = _preset(model, served)
    name = preset or _slug(served)
    version = launch.version or _NEWEST[launch.engine]
    version_note = ""
    if launch.version is None:
        version_note = "  # assumed: the command does not say it"
        assumed.append(
            f"engine version {version} is assumed: `k3observe doctor http://HOST:PORT/metrics` tells which it is")
    port = launch.port or _PORTS[launch.engine]
    if launch.engine == "mindie":
        port = _PORTS["mindie"]
        assumed.append("MindIE's metrics port 1027 is assumed: it is metricsPort in its config.json")
    assumed.append(f"the address 127.0.0.1:{port} is a stand-in: list your engines under targets")
    ascend = launch.engine in ("mindie", "vllm-ascend")
    lines = [
        "# yaml-language-server: $schema=k3observe.schema.json",
        f"# Written by k3observe {__version__} init; for completion: `k3observe schema > k3observe.schema.json`",
        "version: 1",
        f"stack: {_quoted(name)}",
        "language: en                        # or zh-CN",
        "services:",
        f"  - name: {_quoted(name)}",
        f"    model: {{{f'preset: {preset}, ' if preset else ''}served_name: {_quoted(served)}}}",
        "    engine:",
        f"      name: {launch.engine}",
        f'      version: "{version}"{version_note}',
        *_args(launch.args),
        *([f"    role: {launch.role}"] if launch.role != "unified" else []),
        f'    targets: ["127.0.0.1:{port}"]     # assumed: the addresses of your engines, host:port of /metrics',
        *_devices(launch, ascend, assumed),
        "alerts: {}                          # e.g. {KVCacheUsageHigh: {threshold: 0.95, for: 10m}}",
        "notify:                             # where alerts go; without receivers nobody hears them",
        "  receivers: {}                     # e.g. {oncall: {webhook: {url: \"https://hooks.example.com/k3\"}}}",
        "  routes: {}                        # e.g. {critical: oncall, scale_out: oncall, default: oncall}",
    ]
    return "\n".join(lines) + "\n", assumed


def _preset(model: str, served: str) -> str | None:
    match = re.search(r"kimi-?(k[23])", f"{model} {served}", re.I)
    return f"kimi-{match[1].lower()}" if match else None


def _args(args: Any) -> list[str]:
    if not args:
        return []
    return ["      args:", *(f"        {name}: {_value(value)}" for name, value in sorted(args.items()))]


def _devices(launch: Launch, ascend: bool, assumed: list[str]) -> list[str]:
    args = launch.args
    ranks = args.get("tensor_parallel", 1) * args.get("pipeline_parallel", 1)
    if not args.get("dp_attention"):
        ranks *= args.get("data_parallel", 1)
    per_node = min(ranks, 16 if ascend else 8)
    experts = ", experts" if args.get("expert_parallel") else ""
    kind, collector = ("ascend", "npu") if ascend else ("nvidia", "gpu")
    assumed.append(f"{per_node} {kind} devices a node are assumed, read by a sidecar beside each engine on port 19303")
    return [
        f"    accelerators: {{kind: {kind}, per_node: {per_node}, source: sidecar}}   # assumed",
        f"    sidecar: {{collect: [{collector}{experts}]}}    # k3observe-exporter beside each engine",
    ]


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9.-]+", "-", name.rsplit("/", 1)[-1].lower()).strip("-.")[:40].strip("-.")
    return slug or "model"


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", text) and text.lower() not in _YAML_WORDS:
        return text
    printable = "".join(letter for letter in text if letter.isprintable())
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
