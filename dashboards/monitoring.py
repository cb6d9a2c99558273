"""Monitoring watches itself: what is scraped, how fresh it is, what is not watched and why."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import GREEN, RED, Board, Limit, Panel, Query, Row, graph, tile
from k3observe.plan import Plan

BAD = (Limit(value=1, colour=RED),)
_OURS = 'job=~"k3-engine|k3-sidecar|k3-dcgm|k3-npu-exporter"'
_UP = {1: (Text("up", "正常"), GREEN), 0: (Text("down", "中断"), RED)}
_NOT_SCRAPED = Text(
    "No metrics of Prometheus itself: let it scrape its own /metrics, as the job prometheus of the rendered "
    "prometheus.yml does",
    "没有 Prometheus 自身的指标：请让它采集自己的 /metrics，写法见渲染出的 prometheus.yml 中的 prometheus 任务")
_NONE_SENT = Text(
    "Nothing was sent, or nobody scrapes Alertmanager: see the job alertmanager of the rendered prometheus.yml",
    "没有发送过通知，或没有采集 Alertmanager：写法见渲染出的 prometheus.yml 中的 alertmanager 任务")
_GROUPS = '{rule_group=~".*[;/]STACK-.*"}'


def _unwatched(plan: Plan) -> str:
    """The alerts that do not watch a service although nobody asked for that: why, and the one change that arms them."""
    language = plan.config.language
    shared: dict[tuple[str, str, str], list[str]] = {}
    for blind in plan.blind:
        if not blind.wanted:
            fix = blind.fix.get(language) if blind.fix else "-"
            shared.setdefault((blind.service.name, blind.reason.get(language), fix), []).append(blind.alert.name)
    if not shared:
        return Text("Every alert watches every service.", "所有告警都已覆盖全部服务。").get(language)
    head = Text("| Service | Not watched by | Why | What arms it |",
                "| 服务 | 未启用的告警 | 原因 | 如何启用 |").get(language)
    rows = [f"| {service} | {', '.join(alerts)} | {_cell(reason)} | {_cell(fix)} |"
            for (service, reason, fix), alerts in list(shared.items())[:60]]  # fmt: skip
    return "\n".join([head, "|---|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_TILES = Row(height=4, panels=(
    tile("mon-targets", Text("Targets up", "在线目标"),
         Text("Engines and exporters that Prometheus scrapes with success.",
              "Prometheus 采集成功的引擎与 exporter 数。"),
         f"sum(up{{I,{_OURS}}})", idle=Text("No target", "没有采集目标")),
    tile("mon-down", Text("Targets down", "离线目标"),
         Text("Targets whose last scrape failed.", "最近一次采集失败的目标数。"),
         f"count(up{{I,{_OURS}}} == 0) or 0 * count(up{{I,{_OURS}}})", limits=BAD, low=0,
         idle=Text("No target", "没有采集目标")),
    tile("mon-sources", Text("Sources failing", "失败的数据源"),
         Text("Sources that a sidecar could not read last time.", "sidecar 最近一次读取失败的数据源数。"),
         "count(k3:source_up:bool{I} == 0) or 0 * count(k3:source_up:bool{I})", needs=("source_up",), limits=BAD, low=0,
         idle=Text("No sidecar", "没有 sidecar")),
    tile("mon-stale", Text("Oldest reading", "最旧读数"),
         Text("Time since the least fresh source of all sidecars was read with success.",
              "所有 sidecar 数据源中，距上次成功读取最久的时间。"),
         "max(k3:source_age:seconds{I})", unit="s", needs=("source_freshness",), limits=(Limit(value=120),),
         idle=Text("No sidecar", "没有 sidecar")),
    tile("mon-watchdog", Text("Watchdog", "Watchdog"),
         Text("1 while the alert that always fires does: rules are evaluated.",
              "始终触发的告警正在触发时为 1：规则在计算。"),
         'max(ALERTS{alertname="Watchdog",alertstate="firing"}) or vector(0)', limits=(Limit(value=1, colour=RED),),
         good="high", alerts=("Watchdog",),
         states={1: (Text("works", "正常"), GREEN), 0: (Text("silent", "中断"), RED)}),
    tile("mon-rule-failures", Text("Rule failures in 1 h", "1 小时规则失败"),
         Text("Rules whose evaluation failed in the last hour.", "最近 1 小时计算失败的规则次数。"),
         f"sum(increase(prometheus_rule_evaluation_failures_total{_GROUPS}[1h]))", decimals=0, limits=BAD, low=0,
         idle=_NOT_SCRAPED),
    tile("mon-notification-failures", Text("Notifications failed in 1 h", "1 小时通知失败"),
         Text("Alerts that Prometheus could not hand to Alertmanager, and notifications that Alertmanager could not "
              "deliver. Their logs say why.",
              "Prometheus 未能交给 Alertmanager 的告警，以及 Alertmanager 未能送达的通知，原因见二者日志。"),
         "sum(increase(alertmanager_notifications_failed_total[1h]) or "
         "increase(prometheus_notifications_errors_total[1h]) or increase(prometheus_notifications_dropped_total[1h]))",
         decimals=0, limits=BAD, low=0, idle=_NOT_SCRAPED),
))  # fmt: skip

_STATES = Row(title=Text("What is scraped", "采集目标"), height=9, panels=(
    Panel("mon-up", "state-timeline", Text("Targets", "采集目标状态"),
          Text("Engines and exporters, and whether their metrics could be scraped.", "引擎与 exporter 能否采集。"),
          (Query(f"min by (service, job, instance) (up{{I,{_OURS}}})", "{{service}} {{job}} {{instance}}"),),
          states=_UP, alerts=("ExporterDown",), idle=Text("No target", "没有采集目标")),
    Panel("mon-source-state", "state-timeline", Text("Sources of the sidecars", "sidecar 数据源状态"),
          Text("What each sidecar reads, and whether the last read succeeded. A failing source makes its signals "
               "blind.",
               "每个 sidecar 读取的数据源及最近一次是否成功。数据源失败会使对应指标无数据。"),
          (Query("min by (service, instance, collector, source) (k3:source_up:bool{I})",
                 "{{service}} {{instance}} {{collector}} {{source}}"),),
          needs=("source_up",), alerts=("SignalMissing",), states=_UP, idle=Text("No sidecar", "没有 sidecar")),
))  # fmt: skip

_COST = Row(height=8, panels=(
    graph("mon-age", Text("Age of the sidecars' readings", "sidecar 读数年龄"),
          Text("Time since each source was read with success.", "距各数据源上次成功读取的时间。"),
          Query("max by (service, instance, collector) (k3:source_age:seconds{I})",
                "{{service}} {{instance}} {{collector}}"),
          unit="s", needs=("source_freshness",), low=0, many=True, limits=(Limit(value=120),), idle=Text("No sidecar",
                                                                                              "没有 sidecar")),
    graph("mon-scrape", Text("Duration of scrapes", "采集耗时"),
          Text("How long each scrape takes. Near the scrape time-out it will soon fail.",
               "每次采集的耗时。接近采集超时即将失败。"),
          Query(f"max by (service, job, instance) (scrape_duration_seconds{{I,{_OURS}}})",
                "{{service}} {{job}} {{instance}}"), unit="s", low=0, many=True, idle=Text("No target",
                                                                                           "没有采集目标")),
))  # fmt: skip

_SIZE = Row(height=8, panels=(
    graph("mon-samples", Text("Samples of a scrape", "单次采集样本数"),
          Text("Samples that each target exposes. A jump is a new version, or labels that grow.",
               "每个目标暴露的样本数。突增说明版本变化或标签膨胀。"),
          Query(f"max by (service, job, instance) (scrape_samples_scraped{{I,{_OURS}}})",
                "{{service}} {{job}} {{instance}}"), low=0, many=True, idle=Text("No target", "没有采集目标")),
    graph("mon-rules", Text("Duration of rule groups", "规则组计算耗时"),
          Text("How long the rule groups of this stack take. It has to stay far below the evaluation interval.",
               "本集群规则组的计算耗时，应远小于计算间隔。"),
          Query('max by (group) (label_replace(prometheus_rule_group_last_duration_seconds' + _GROUPS
                + ', "group", "$1", "rule_group", ".*[;/]STACK-(.*)"))',
                "{{group}}"), unit="s", low=0, many=True, idle=_NOT_SCRAPED),
))  # fmt: skip

_ALERTS = Row(title=Text("Alerts and notifications", "告警与通知"), height=9, panels=(
    Panel("mon-alerts", "table", Text("Alerts pending and firing", "待触发与触发中的告警"),
          Text("All alerts of the stack that are not inactive, those of every severity.",
               "本集群所有未处于空闲状态的告警。"),
          (Query("max by (service, alertname, alertstate, severity) (ALERTS{S})"),),
          columns={"alertname": Text("Alert", "告警"), "alertstate": Text("State", "状态"),
                   "severity": Text("Severity", "级别"), "service": Text("Service", "服务")},
          idle=Text("Nothing is pending or firing", "没有告警")),
    graph("mon-notifications", Text("Notifications a minute", "每分钟通知数"),
          Text("What Alertmanager sent, by kind of receiver, and what it could not deliver.",
               "Alertmanager 按接收方式发出的通知，以及未能送达的通知。"),
          Query("60 * sum by (integration) (rate(alertmanager_notifications_total[$__rate_interval])) > 0",
                "{{integration}}"),
          Query("60 * sum(rate(alertmanager_notifications_failed_total[$__rate_interval]))", Text("failed", "失败")),
          low=0, idle=_NONE_SENT, colours={"failed": RED, "失败": RED}),
))  # fmt: skip

_BLIND = Row(title=Text("What is not watched, and why", "未覆盖的内容及原因"), height=10, panels=(
    Panel("mon-blind", "text", Text("Alerts that are not armed", "未启用的告警"),
          Text("From the configuration this dashboard was rendered from.", "来自渲染本看板时的配置。"),
          content=_unwatched),
))  # fmt: skip

BOARD = Board(
    "monitoring", Text("Monitoring", "监控自身"),
    Text("What is scraped, how fresh it is, and which alerts are blind and why.",
         "采集了什么、数据是否新鲜，以及哪些告警失效及原因。"),
    instances="up", unowned=True,
    rows=(_TILES, _STATES, _COST, _SIZE, _ALERTS, _BLIND),
)  # fmt: skip
