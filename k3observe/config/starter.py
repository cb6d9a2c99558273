"""The text of a first configuration: what a launch command says, and what had to be assumed."""

from __future__ import annotations

import re
from typing import Any

from k3observe.catalogue.model import Text
from k3observe.config.launch import Launch
from k3observe.config.launch_flags import PORTS
from k3observe.version import __version__
from k3observe.versions import NEWEST

_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

EXAMPLE = Launch("vllm", None, "moonshotai/Kimi-K3", "kimi-k3", None, "unified", {"tensor_parallel": 8})


_SILENT = Text("assumed: the command does not say it", "假定：命令中没有")


def starter(launch: Launch, language: str = "en") -> tuple[str, list[str]]:
    """Return a commented configuration, and one line for each thing that was assumed or carried over.

    Comments and lines are in ``language`` ("en", "zh-CN"), in which the stack's alerts and dashboards will be too.
    """
    def say(english: str, chinese: str) -> str:
        return Text(english, chinese).get(language)

    assumed = list(launch.notes)
    model = _printable(launch.model or "") or "model"
    doubt = "" if launch.model or launch.served_name else f"   # {_SILENT.get(language)}"
    served = _printable(launch.served_name or "") or model
    preset = _preset(model, served)
    name = preset or _slug(served)
    version = launch.version or NEWEST[launch.engine]
    version_note = ""
    if launch.version is None:
        version_note = f"  # {_SILENT.get(language)}"
        assumed.append(Text(
            f"engine version {version} is assumed: `k3observe doctor http://HOST:PORT/metrics` tells which it is",
            f"引擎版本假定为 {version}：可用 `k3observe doctor http://HOST:PORT/metrics` 查看实际版本"))
    if launch.engine == "mindie" and launch.port is None:
        assumed.append(Text("MindIE's metrics port 1027 is assumed: it is metricsPort in its config.json",
                            "MindIE 的指标端口假定为 1027：即其 config.json 中的 metricsPort"))
    ascend = launch.engine in ("mindie", "vllm-ascend")
    head = say(f"Written by k3observe {__version__} init; completion in your editor: `k3observe schema --help`",
               f"由 k3observe {__version__} init 生成；编辑器补全见 `k3observe schema --help`")
    lines = [
        f"# {head}",
        "version: 1",
        f"stack: {_quoted(name)}",
        f"language: {language:25} # {say('or zh-CN', '或 en')}",
        "services:",
        f"  - name: {_quoted(name)}",
        f"    model: {{{f'preset: {preset}, ' if preset else ''}served_name: {_quoted(served)}}}{doubt}",
        "    engine:",
        f"      name: {launch.engine}",
        f'      version: "{version}"{version_note}',
        *_args(launch, language),
        *([f"    role: {launch.role}"] if launch.role != "unified" else []),
        *_place(launch, assumed, language),
        *_devices(launch, ascend, assumed, language),
        *(["outputs: {kubernetes: true}         # " + say("monitoring objects for the operator, and the sidecar",
                                                         "供 Prometheus Operator 使用的监控对象，以及 sidecar")]
          if launch.kubernetes is not None else []),
        "alerts: {}                          # " + say("e.g.", "例如")
        + " {KVCacheUsageHigh: {threshold: 0.95, for: 10m}}",
        "notify:                             # " + say("where alerts go; without receivers nobody hears them",
                                                       "告警发往何处；没有接收方，告警就无人收到"),
        "  receivers: {}                     # " + say("e.g.", "例如")
        + " {oncall: {webhook: {url: \"https://hooks.example.com/k3\"}}}",
        "  routes: {}                        # " + say("e.g.", "例如")
        + " {critical: oncall, scale_out: oncall, default: oncall}",
    ]
    return "\n".join(lines) + "\n", [text.get(language) for text in assumed]


def _preset(model: str, served: str) -> str | None:
    match = re.search(r"kimi-?(k[23])", f"{model} {served}", re.I)
    return f"kimi-{match[1].lower()}" if match else None


def _args(launch: Launch, language: str) -> list[str]:
    dark = "--disable-log-stats" if launch.engine.startswith("vllm") else "--enable-metrics"
    removed = dark.startswith("--d")
    note = Text(f"as launched; delete this once {dark} is {'removed' if removed else 'added'}",
                f"与启动命令一致；{'去掉' if removed else '加上'} {dark} 后请删除此行")
    notes = {("enable_metrics", False): f"   # {note.get(language)}"}
    args = dict(launch.args)
    if launch.engine == "vllm" and launch is not EXAMPLE:
        args.setdefault("admission_limits", False)
    lines = [f"        {name}: {_value(value)}{notes.get((name, value), '')}" for name, value in sorted(args.items())]
    return ["      args:", *lines] if lines else []


def _place(launch: Launch, assumed: list[Text], language: str) -> list[str]:
    """Where the engines are: the pods of a manifest, the address that the command names, or a stand-in."""
    port, lines = launch.port or PORTS[launch.engine], []
    if launch.https:
        note = Text("add tls_ca_file: where the CA is one of your own", "使用自建 CA 时请加 tls_ca_file:")
        lines.append(f"    scheme: https                    # {note.get(language)}")
    if launch.kubernetes is not None:
        found = {**launch.kubernetes, "port": port}
        lines += ["    discovery:", "      kubernetes:"]
        lines += [f"        {name}: {_flow(value)}" for name, value in found.items()]
    else:
        address = f"{launch.host or '127.0.0.1'}:{port}"
        what = Text("is what the command says", "取自命令") if launch.host else Text("is a stand-in", "只是占位")
        assumed.append(Text(f"the address {address} {what.en}: list your engines under targets",
                            f"地址 {address} {what.zh}：请在 targets 中列出各引擎的地址"))
        note = Text("assumed: the addresses of your engines, host:port of /metrics",
                    "假定：各引擎 /metrics 的 host:port")
        lines.append(f'    targets: ["{address}"]     # {note.get(language)}')
    return lines + ([f"    replicas: {{expected: {launch.replicas}}}"] if launch.replicas else [])


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return _value(value)


def _devices(launch: Launch, ascend: bool, assumed: list[Text], language: str) -> list[str]:
    args = launch.args
    ranks = args.get("tensor_parallel", 1) * args.get("pipeline_parallel", 1)
    if not args.get("dp_attention"):
        ranks *= args.get("data_parallel", 1)
    per_node = launch.devices or min(ranks, 16 if ascend else 8)
    source = _experts_source(launch) if args.get("expert_parallel") else ""
    collect = f"{'npu' if ascend else 'gpu'}, experts], experts: {{source: {source}}}" if source else (
        f"{'npu' if ascend else 'gpu'}]")  # fmt: skip
    kind = "ascend" if ascend else "nvidia"
    assumed.append(Text(
        f"{per_node} {kind} devices a node are assumed, read by a sidecar beside each engine on port 19303",
        f"假定每节点 {per_node} 张 {'昇腾' if ascend else 'NVIDIA'} 卡，由每个引擎旁的 sidecar 在端口 19303 上读取"))
    guess = Text("assumed", "假定")
    beside = Text("k3observe-exporter beside each engine", "每个引擎旁的 k3observe-exporter")
    return [
        f"    accelerators: {{kind: {kind}, per_node: {per_node}, source: sidecar}}   # {guess.get(language)}",
        f"    sidecar: {{collect: [{collect}}}    # {beside.get(language)}",
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
    return '"' + _printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
