"""The text of a first configuration: what a launch command says, and what had to be assumed."""

from __future__ import annotations

import re
from typing import Any

from k3observe.config.launch import Launch
from k3observe.config.launch_flags import PORTS
from k3observe.version import __version__
from k3observe.versions import NEWEST

_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

EXAMPLE = Launch("vllm", None, "moonshotai/Kimi-K3", "kimi-k3", None, "unified", {"tensor_parallel": 8})


def starter(launch: Launch) -> tuple[str, list[str]]:
    """Return a commented configuration, and one line for each thing that was assumed or carried over."""
    assumed = list(launch.notes)
    model = launch.model or "model"
    doubt = "" if launch.model or launch.served_name else "   # assumed: the command does not say it"
    served = launch.served_name or model
    preset = _preset(model, served)
    name = preset or _slug(served)
    version = launch.version or NEWEST[launch.engine]
    version_note = ""
    if launch.version is None:
        version_note = "  # assumed: the command does not say it"
        assumed.append(
            f"engine version {version} is assumed: `k3observe doctor http://HOST:PORT/metrics` tells which it is")
    if launch.engine == "mindie" and launch.port is None:
        assumed.append("MindIE's metrics port 1027 is assumed: it is metricsPort in its config.json")
    ascend = launch.engine in ("mindie", "vllm-ascend")
    lines = [
        "# yaml-language-server: $schema=k3observe.schema.json",
        f"# Written by k3observe {__version__} init; for completion: `k3observe schema > k3observe.schema.json`",
        "version: 1",
        f"stack: {_quoted(name)}",
        "language: en                        # or zh-CN",
        "services:",
        f"  - name: {_quoted(name)}",
        f"    model: {{{f'preset: {preset}, ' if preset else ''}served_name: {_quoted(served)}}}{doubt}",
        "    engine:",
        f"      name: {launch.engine}",
        f'      version: "{version}"{version_note}',
        *_args(launch),
        *([f"    role: {launch.role}"] if launch.role != "unified" else []),
        *_place(launch, assumed),
        *_devices(launch, ascend, assumed),
        *(["outputs: {kubernetes: true}         # monitoring objects for the operator, and the sidecar"]
          if launch.kubernetes is not None else []),
        "alerts: {}                          # e.g. {KVCacheUsageHigh: {threshold: 0.95, for: 10m}}",
        "notify:                             # where alerts go; without receivers nobody hears them",
        "  receivers: {}                     # e.g. {oncall: {webhook: {url: \"https://hooks.example.com/k3\"}}}",
        "  routes: {}                        # e.g. {critical: oncall, scale_out: oncall, default: oncall}",
    ]
    return "\n".join(lines) + "\n", assumed


def _preset(model: str, served: str) -> str | None:
    match = re.search(r"kimi-?(k[23])", f"{model} {served}", re.I)
    return f"kimi-{match[1].lower()}" if match else None


def _args(launch: Launch) -> list[str]:
    dark = "--disable-log-stats" if launch.engine.startswith("vllm") else "--enable-metrics"
    notes = {("enable_metrics", False): f"   # as launched; delete this once {dark} is "
             + ("removed" if dark.startswith("--d") else "added")}  # fmt: skip
    args = dict(launch.args)
    if launch.engine == "vllm" and launch is not EXAMPLE:
        args.setdefault("admission_limits", False)
    lines = [f"        {name}: {_value(value)}{notes.get((name, value), '')}" for name, value in sorted(args.items())]
    return ["      args:", *lines] if lines else []


def _place(launch: Launch, assumed: list[str]) -> list[str]:
    """Where the engines are: the pods of a manifest, the address that the command names, or a stand-in."""
    port, lines = launch.port or PORTS[launch.engine], []
    if launch.https:
        lines.append("    scheme: https                    # add tls_ca_file: where the CA is one of your own")
    if launch.kubernetes is not None:
        found = {**launch.kubernetes, "port": port}
        lines += ["    discovery:", "      kubernetes:"]
        lines += [f"        {name}: {_flow(value)}" for name, value in found.items()]
    else:
        address = f"{launch.host or '127.0.0.1'}:{port}"
        what = f"the address {address} is what the command says" if launch.host else (
            f"the address {address} is a stand-in")  # fmt: skip
        assumed.append(f"{what}: list your engines under targets")
        lines.append(f'    targets: ["{address}"]     # assumed: the addresses of your engines, host:port of /metrics')
    return lines + ([f"    replicas: {{expected: {launch.replicas}}}"] if launch.replicas else [])


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return _value(value)


def _devices(launch: Launch, ascend: bool, assumed: list[str]) -> list[str]:
    args = launch.args
    ranks = args.get("tensor_parallel", 1) * args.get("pipeline_parallel", 1)
    if not args.get("dp_attention"):
        ranks *= args.get("data_parallel", 1)
    per_node = launch.devices or min(ranks, 16 if ascend else 8)
    source = _experts_source(launch) if args.get("expert_parallel") else ""
    collect = f"{'npu' if ascend else 'gpu'}, experts], experts: {{source: {source}}}" if source else (
        f"{'npu' if ascend else 'gpu'}]")  # fmt: skip
    kind = "ascend" if ascend else "nvidia"
    assumed.append(f"{per_node} {kind} devices a node are assumed, read by a sidecar beside each engine on port 19303")
    return [
        f"    accelerators: {{kind: {kind}, per_node: {per_node}, source: sidecar}}   # assumed",
        f"    sidecar: {{collect: [{collect}}}    # k3observe-exporter beside each engine",
    ]


def _experts_source(launch: Launch) -> str:
    """What tells most of the experts of an engine as it is launched; MindIE tells nothing by itself."""
    if launch.engine == "sglang":
        return "log" if launch.args.get("balancedness_report") == "server_log" else "metrics"
    if launch.engine == "vllm-ascend" or launch.args.get("eplb_log_balancedness"):
        return "log"
    return "plugin" if launch.engine == "vllm" else ""


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
