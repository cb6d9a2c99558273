"""The words of a message, in English and in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """Words and patterns of one language."""

    firing: str
    resolved: str
    title: str
    both: str
    severity: str
    action: str
    value: str
    threshold: str
    labels: str
    since: str
    ended: str
    lasted: str
    runbook: str
    dashboard: str
    more: str
    bare: str
    merged: str
    colon: str
    comma: str
    aside: str
    severities: Mapping[str, str]
    actions: Mapping[str, str]


WORDS: Mapping[str, Words] = {
    "en": Words(
        firing="FIRING {n}",
        resolved="RESOLVED {n}",
        title="{status} | {names}",
        both=", ",
        severity="Severity",
        action="Action",
        value="Value",
        threshold="threshold",
        labels="Labels",
        since="Since",
        ended="Resolved",
        lasted="after",
        runbook="Runbook",
        dashboard="Dashboard",
        more="… and {n} more",
        bare="The platform refused the full text: see the alerts in Alertmanager ({n})",
        merged="{n} notifications in one message, to keep within the robot's rate limit",
        colon=": ",
        comma=", ",
        aside=" ({})",
        severities={"critical": "critical", "warning": "warning", "info": "info"},
        actions={
            "scale_out": "scale out",
            "rebalance": "rebalance experts",
            "replace_device": "replace the device",
            "restart_engine": "restart the engine",
            "investigate": "investigate",
        },
    ),
    "zh-CN": Words(
        firing="告警 {n}",
        resolved="恢复 {n}",
        title="【{status}】{names}",
        both=" · ",
        severity="级别",
        action="建议动作",
        value="当前值",
        threshold="阈值",
        labels="标签",
        since="开始时间",
        ended="恢复时间",
        lasted="持续",
        runbook="处理手册",
        dashboard="监控看板",
        more="…… 另有 {n} 条",
        bare="平台拒收完整内容，请到 Alertmanager 查看告警（{n} 条）",
        merged="受机器人频率限制，{n} 次通知已合并为一条",
        colon="：",
        comma="，",
        aside="（{}）",
        severities={"critical": "严重", "warning": "警告", "info": "提示"},
        actions={
            "scale_out": "扩容",
            "rebalance": "专家负载均衡",
            "replace_device": "更换故障卡",
            "restart_engine": "重启推理引擎",
            "investigate": "排查",
        },
    ),
}
