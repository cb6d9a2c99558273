"""What a service's source of expert loads lacks, where the configuration says that no reading can come from it."""

from __future__ import annotations

from typing import NamedTuple

from k3observe.catalogue.model import Text
from k3observe.catalogue.version import Version
from k3observe.config.model import Service

LOADS = ("expert_balance", "expert_load_variance", "expert_rank_load", "expert_ranks_seen", "expert_window_tokens")
"""How the names of signals start that are made of readings; what is moved, and where a rank runs, is told without."""


class Lack(NamedTuple):
    """Why there is none, and the change that gives it; as a fact it is false."""

    reason: Text
    fix: Text

    def __bool__(self) -> bool:
        return False


_PLUGIN = Text("set sidecar.experts.source: plugin", "设置 sidecar.experts.source: plugin")
_ASCEND = "--additional-config '{\"eplb_config\":{\"dynamic_eplb\":true}}'"
_ONLY_SGLANG = Text("of all engines only SGLang has metrics of expert loads", "只有 SGLang 的指标里有专家负载")


def lack(service: Service) -> Lack | None:
    """None where readings may come: what depends on files and environments that the configuration does not know."""
    source, engine = service.sidecar.experts.source, service.engine
    name, args = engine.name, engine.args
    version = Version.parse(engine.version) if engine.version else None
    if source == "metrics" and name in ("vllm", "vllm-ascend", "mindie"):
        own = {"vllm": "plugin", "vllm-ascend": "log", "mindie": "file"}[name]
        return Lack(_ONLY_SGLANG, Text(f"set sidecar.experts.source: {own}", f"设置 sidecar.experts.source: {own}"))
    if name == "vllm" and source == "plugin" and not args.eplb:
        return Lack(Text("vLLM counts expert loads only with EPLB on", "vLLM 仅在开启 EPLB 时统计专家负载"),
                    _add("--enable-eplb", "engine.args.eplb: true"))  # fmt: skip
    if source != "log":
        return None
    if name == "vllm":
        if version is not None and version < Version.parse("0.28.0"):
            return Lack(Text("before 0.28 vLLM logs a mean over layers, which is no balance of ranks",
                             "vLLM 0.28 之前的日志按层求平均，不是 rank 间的均衡度"), _PLUGIN)  # fmt: skip
        if not args.eplb or args.eplb_log_balancedness is False:
            return Lack(Text("vLLM logs the balance only with EPLB on and told to",
                             "vLLM 仅在开启 EPLB 且允许打印时才在日志中输出均衡度"),
                        _add("--enable-eplb --eplb-config.log_balancedness true",
                             "engine.args: {eplb: true, eplb_log_balancedness: true}"))  # fmt: skip
    if name == "vllm-ascend" and not args.eplb:
        return Lack(Text("vLLM-Ascend logs the hotness of experts only with its dynamic EPLB on",
                         "vLLM-Ascend 仅在开启动态 EPLB 时才在日志中输出专家热度"),
                    _add(f"{_ASCEND} (and DYNAMIC_EPLB=true in its environment)", "engine.args.eplb: true",
                         f"{_ASCEND}（并设置环境变量 DYNAMIC_EPLB=true）"))  # fmt: skip
    if name == "sglang":
        # to 0.5.17 one flag stands for log and metrics
        old = version is not None and version < Version.parse("0.5.18")
        if args.balancedness_report == "off" or (args.balancedness_report == "prometheus" and not old):
            flag = "--enable-expert-distribution-metrics" if old else "--expert-balancedness-report-mode server_log"
            return Lack(Text("SGLang logs the balance only when told to", "SGLang 未开启时不在日志中输出均衡度"),
                        _add(flag, "engine.args.balancedness_report: server_log"))  # fmt: skip
    return None


def _add(flags: str, setting: str, zh: str = "") -> Text:
    return Text(f"add {flags}, and set {setting}", f"加上 {zh or flags}，并设置 {setting}")
