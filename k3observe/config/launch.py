"""Reads the launch command of an engine, as people keep it in scripts, and says what it means for monitoring.

A flag of another engine is carried over by its meaning and reported: commands circulate with flags that the engine
they are for never had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from k3observe.catalogue.model import Text
from k3observe.config import launch_manifest, launch_mindie, launch_shell
from k3observe.config.errors import ConfigError, Problem
from k3observe.config.launch_flags import FLAGS, FOREIGN, PORTS
from k3observe.config.launch_shell import Invocation, Place

MAX_COMMAND = 64 * 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command says. ``args`` are fields of ``engine.args``; ``notes`` are for the person who ran ``init``.

    ``port`` and ``host`` are where the metrics are reached from outside; ``kubernetes`` is how the pods are found
    instead; ``devices`` are those of a node.
    """

    engine: str
    version: str | None
    model: str | None
    served_name: str | None
    port: int | None
    role: str
    args: Mapping[str, Any]
    notes: tuple[Text, ...] = ()
    host: str | None = None
    https: bool = False
    kubernetes: Mapping[str, Any] | None = None
    replicas: int | None = None
    devices: int | None = None


_MODEL = ("--model", "--model-path", "--model_path", "--model-name-or-path", "--model-weight-path")
_NAME = ("--served-model-name", "--served_model_name", "--model-name")
_VALUELESS = re.compile(
    r"--(?:trust-remote-code|enforce-eager|headless|async-scheduling|(?:no-)?(?:enable|disable)-.*)")
_EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]", "*", ""})  # noqa: S104 (what a command says, nothing is bound)
_YES = frozenset({"1", "true", "yes", "y"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


def read(text: str, name: str = "command") -> Launch:
    """Read a launch command, a script, a manifest of Kubernetes or Compose, or MindIE's config.json.

    Raises ConfigError when no engine's command is in it, quotes do not match, or a value cannot be read.
    """
    if len(text) > MAX_COMMAND:
        raise ConfigError([Problem("is longer than 64 KiB", file=name)])
    if launch_mindie.is_config(text):
        words, devices = launch_mindie.words(text, name)
        return _launch(Invocation("mindie", None, words, {}, Place(devices=devices)), name)
    read_all = launch_manifest if launch_manifest.is_manifest(text) else launch_shell
    found: list[Invocation] = []
    try:
        found.extend(read_all.invocations(text, name))
    except ConfigError:
        if not found:
            raise
    if not found:
        raise ConfigError([Problem(
            "holds no launch command of vLLM, SGLang or MindIE", value=text.strip()[:200], file=name,
            fix="give the line that starts the engine, e.g. 'vllm serve MODEL --tensor-parallel-size 8'")])  # fmt: skip
    launch = _launch(found[0], name)
    if len(found) == 1:
        return launch
    more = Text(
        f"{len(found) - 1} more engines are started there and were not read: give each command to init by itself",
        f"其中另外启动了 {len(found) - 1} 个引擎，未读取：请对每条命令分别执行 init")
    return replace(launch, notes=(*launch.notes, more))


@dataclass
class _Reading:
    args: dict[str, Any] = field(default_factory=dict)
    notes: list[Text] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


def _launch(invocation: Invocation, name: str) -> Launch:
    engine, words = invocation.engine, list(invocation.words)
    reading = _Reading()
    position = 0
    positional: list[str] = []
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-") or re.fullmatch(r"-\d.*", word):
            positional.append(word)
            continue
        flag, equals, inline = word.partition("=")
        flag = flag if flag in _MODEL + _NAME else flag.replace("_", "-") if flag.startswith("--") else flag
        following: list[str] = []
        while position + len(following) < len(words) and not words[position + len(following)].startswith("-"):
            following.append(words[position + len(following)])
        values = [inline] if equals else following
        try:
            taken = _flag(engine, flag, values, reading)
            position += 0 if equals else taken
        except ValueError as error:
            raise ConfigError([Problem(str(error), (flag,), values[0] if values else None, file=name)]) from None
    return _finish(invocation, positional, reading)


def _flag(engine: str, flag: str, values: list[str], reading: _Reading) -> int:
    """Take in one flag; return how many of the following words were its values."""
    known = FLAGS[engine].get(flag) or _abbreviated(engine, flag)
    if known is None and flag in FOREIGN and flag not in _MODEL:
        known = FOREIGN[flag]
        reading.notes.append(Text(f"{flag} is no flag of {engine}; it was carried over as {known[0]}",
                                  f"{engine} 没有 {flag} 这个参数，已按其含义写为 {known[0]}"))
    if known is not None:
        target, reader = known
        if not callable(reader):
            reading.args[target] = reader
            return 0
        if not values:
            raise ValueError("needs a value")
        if _hidden(values[0]):
            reading.notes.append(_left_out(flag, values[0]))
            reading.left_out.add(target)
        else:
            reading.args[target] = reader(values[0])
        return 1
    reading.values[flag] = values
    if _VALUELESS.fullmatch(flag):
        return 0
    return len(values) if flag in _NAME else min(1, len(values))


def _abbreviated(engine: str, flag: str) -> Any:
    """Engines take the beginning of a flag for the flag, where no other begins so."""
    found = [name for name in FLAGS[engine] if name.startswith(flag)] if len(flag) >= 10 else []
    return FLAGS[engine][found[0]] if len(found) == 1 else None


def _hidden(text: str) -> bool:
    """True for what the shell or a person has to put in: $TP, $(nproc), <MODEL>."""
    return "$" in text or re.fullmatch(r"<.*>", text) is not None


def _left_out(flag: str, value: str) -> Text:
    return Text(f"{flag} {value} is set where the command does not show it; it was left out",
                f"{flag} {value} 的值不在命令之中，已略去")


def _finish(invocation: Invocation, words: Sequence[str], reading: _Reading) -> Launch:
    engine, env, place = invocation.engine, invocation.environment, invocation.place
    args, notes, values = reading.args, reading.notes, reading.values

    def plain(*flags: str) -> str | None:
        return next((values[flag][0] for flag in flags if values.get(flag)), None)

    def value(*flags: str) -> str | None:
        told = plain(*flags)
        if told is not None and _hidden(told):
            notes.append(_left_out(flags[0], told))
            return None
        return told

    _eplb(engine, _config(reading, "--eplb-config") or _config(reading, "--additional-config"), args)
    role = _role(_config(reading, "--kv-transfer-config"), value("--disaggregation-mode"), args)
    _experts(engine, value("--moe-a2a-backend"), args, notes)
    if engine == "mindie" and env.get("MIES_SERVICE_MONITOR_MODE") != "1":
        notes.append(Text("MindIE serves no metrics unless MIES_SERVICE_MONITOR_MODE=1 is set at its start: set it",
                          "MindIE 启动时须设置 MIES_SERVICE_MONITOR_MODE=1，否则不提供指标：请加上"))
    if engine == "sglang" and "enable_metrics" not in args and "--config" not in values:
        notes.append(Text("SGLang serves no metrics without --enable-metrics: add it",
                          "SGLang 须加 --enable-metrics 才提供指标：请加上"))
        args["enable_metrics"] = False
    elif args.get("enable_metrics") is False:
        notes.append(Text("vLLM serves no metrics of its own with --disable-log-stats: remove it",
                          "vLLM 带 --disable-log-stats 时不提供自身指标：请去掉"))
    if engine == "sglang" and env.get("SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC", "").lower() in _YES:
        args["balancedness_report"] = "prometheus"  # 0.5.7 to 0.5.17: instead of the log
    if env.get("VLLM_USE_RUST_FRONTEND") == "1":
        args["rust_frontend"] = True
    rank = plain("--node-rank")
    if "--headless" in values or (rank is not None and rank.isdecimal() and int(rank) > 0):
        notes.append(Text("this command is of a node that serves no API and no metrics: target the node that does",
                          "该命令所在节点不提供 API，也不提供指标：targets 请填写提供指标的节点"))
    if value("--config"):
        notes.append(Text(f"the settings in {value('--config')} were not read: add them to engine.args",
                          f"未读取 {value('--config')} 中的设置：请写入 engine.args"))
    start = words[1:] if words[:1] == ["start"] else words
    model = value(*_MODEL) or next(iter(start), None)
    if model is not None and _hidden(model):
        notes.append(Text(f"the model {model} is set where the command does not show it: fill in model.served_name",
                          f"模型 {model} 的值不在命令之中：请填写 model.served_name"))
        model = None
    silent = "tensor_parallel" in reading.left_out or (
        "tensor_parallel" not in args and (engine == "mindie" or any(word in ("$@", "$*") for word in words)))
    host, port = _address(engine, value("--host"), value("--metrics-port" if engine == "mindie" else "--port", "-p"),
                          place, notes)  # fmt: skip
    return Launch(
        engine, invocation.version, model, value(*_NAME), port, role, args, tuple(notes), host,
        bool(values.get("--ssl-certfile")), place.kubernetes, place.replicas,
        place.devices or _devices(args, plain("--data-parallel-size-local", "-dpl"), plain("--nnodes"),
                                  silent))  # fmt: skip


def _address(engine: str, host: str | None, told: str | None, place: Place, notes: list[Text]
             ) -> tuple[str | None, int | None]:  # fmt: skip
    """Where the metrics are reached: the address that the engine is bound to, the port that its container publishes."""
    port = int(told) if told and re.fullmatch(r"[0-9]{1,5}", told.strip()) and 0 < int(told) < 65536 else None
    if told and port is None:
        notes.append(Text(f"--port {told.strip()[:20]} is no port; it was left out",
                          f"--port {told.strip()[:20]} 不是端口，已略去"))
    if port is None and len(place.ports) == 1 and engine != "mindie":
        port = place.ports[0]
    bound = host or ("127.0.0.1" if engine in ("sglang", "mindie") else "")
    if bound in _LOOPBACK and not (engine == "mindie" and host is None):
        notes.append(Text(f"the engine listens on {bound} alone, out of Prometheus' reach: add --host 0.0.0.0",
                          f"引擎只监听 {bound}，Prometheus 无法访问：请加 --host 0.0.0.0"))
    given = host if host and re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})", host) else None
    given = None if host in _EVERYWHERE | _LOOPBACK else given
    if place.published is None:
        return given, port
    inside = port or PORTS[engine]
    address, outside = place.published.get(inside, ("", None))
    if outside is None:
        notes.append(Text(f"port {inside} of the container is not published: add -p {inside}:{inside}",
                          f"容器端口 {inside} 未发布：请加 -p {inside}:{inside}"))
        return None, inside
    if address in _LOOPBACK:
        notes.append(Text(f"port {outside} is published on {address} alone, out of Prometheus' reach from elsewhere",
                          f"端口 {outside} 只发布在 {address} 上，其他机器上的 Prometheus 无法访问"))
    return address if address not in _EVERYWHERE | _LOOPBACK and "[" not in address else None, outside


def _devices(args: Mapping[str, Any], local: str | None, nodes: str | None, silent: bool) -> int | None:
    """Devices of a node, where the command tells; 8 where it keeps the number of ranks to itself."""
    ranks = args.get("tensor_parallel", 1) * args.get("pipeline_parallel", 1)
    if silent:
        return 8
    if local is not None and local.isdecimal() and 0 < int(local) <= 64:
        return int(ranks * int(local))
    if nodes is not None and nodes.isdecimal() and 0 < int(nodes) <= ranks:
        return int(ranks // int(nodes))
    return None


def _experts(engine: str, backend: str | None, args: dict[str, Any], notes: list[Text]) -> None:
    """vLLM has no size of the group; backends that send tokens to experts (DeepEP) spread SGLang's over all ranks."""
    if engine == "sglang" and (args.get("expert_parallel") or backend not in (None, "none")):
        args["expert_parallel_size"] = args.get("tensor_parallel", 1)
    if args.get("expert_parallel_size", 1) < 2:
        return
    args["expert_parallel"] = True
    if engine in ("vllm", "vllm-ascend"):
        ranks = args.get("tensor_parallel", 1) * args.get("data_parallel", 1)
        wanted = args.pop("expert_parallel_size")
        notes.append(Text(
            f"{engine} has no size of the expert-parallel group: with --enable-expert-parallel it is "
            f"tensor x data parallel = {ranks}, not {wanted}",
            f"{engine} 不能单独设置专家并行组的大小：带 --enable-expert-parallel 时等于张量并行 × 数据并行 = {ranks}，"
            f"而不是 {wanted}"))


def _config(reading: _Reading, flag: str) -> Mapping[str, Any]:
    """A flag that takes JSON, and its parts that are given by themselves (--eplb-config.step_interval 100)."""
    found: dict[str, Any] = {}
    for text in reading.values.get(flag, ())[:1]:
        try:
            found.update(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            reading.notes.append(Text(f"this value is no JSON object and was left out: {text[:80]}",
                                      f"该值不是 JSON 对象，已略去：{text[:80]}"))
    for name, values in reading.values.items():
        if name.startswith(flag + ".") and values:
            try:
                found[name[len(flag) + 1 :].replace("-", "_")] = json.loads(values[0].lower())
            except (ValueError, RecursionError):
                found[name[len(flag) + 1 :].replace("-", "_")] = values[0]
    return found


def _eplb(engine: str, config: Mapping[str, Any], args: dict[str, Any]) -> None:
    inner = config.get("eplb_config", config) if engine == "vllm-ascend" else config
    if not isinstance(inner, dict):
        return
    redundant = inner.get("num_redundant_experts")
    if "log_balancedness" in inner:
        args["eplb_log_balancedness"] = bool(inner["log_balancedness"])
    if inner.get("dynamic_eplb"):
        args["eplb"] = True
    if isinstance(redundant, int) and redundant >= 0:
        args["num_redundant_experts"] = int(redundant)


def _role(transfer: Mapping[str, Any], mode: str | None, args: dict[str, Any]) -> str:
    if transfer:
        if any(name in json.dumps(transfer) for name in ("Offloading", "LMCache")):
            args["kv_offload"] = True
        return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(transfer.get("kv_role")), "unified")
    return mode if mode in ("prefill", "decode") else "unified"
