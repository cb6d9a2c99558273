"""The fleet at a glance: is anything wrong, where, and which page to open next."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import GREEN, RED, Board, Limit, Panel, Query, Row, graph, tile

MISSING = (Limit(value=1, colour=RED),)
TTFT = (Limit("TimeToFirstTokenHigh", colour=RED),)
ITL = (Limit("InterTokenLatencyHigh", colour=RED),)
KV = (Limit("KVCacheUsageHigh"),)
BALANCE = (Limit("ExpertBalanceLow"),)
MEMORY = (Limit("AcceleratorMemoryHigh"),)
ERRORS = (Limit("RequestErrorsHigh", colour=RED),)
FULL = (Limit(value=0.8), Limit(value=1, colour=RED))

_P99 = "histogram_quantile(0.99, sum by (service, le) ({}_bucket:rate5m{{S}}))"
_TTFT = _P99.format("k3:time_to_first_token_seconds")
_ITL = _P99.format("k3:inter_token_latency_seconds")
_FAILED = (
    "(sum {by} (rate(k3:requests_failed:total{S}[$__rate_interval]))"
    " or 0 * sum {by} (rate(k3:requests_finished:total{S}[$__rate_interval])))"
    " / (sum {by} (rate(k3:requests_finished:total{S}[$__rate_interval])) > 0)"
)
_MISSING_ENGINES = "clamp_min(k3:replicas_expected:count{S} - on (service, role) k3:engines:count{S}, 0)"
_LOST = (
    "sum by (service) (clamp_min(k3:accelerators_expected:count{S}"
    " - (k3:accelerators_visible:count{S} or 0 * k3:accelerators_expected:count{S}), 0))"
)

BOARD = Board(
    "overview", Text("Overview", "总览"),
    Text("All services of the stack: engines, traffic, latency, saturation, experts and devices.",
         "整个集群的所有服务：引擎、流量、延迟、饱和度、专家与加速卡。"),
    instances="k3:engine_up:bool",
    rows=(
        Row(height=4, panels=(
            tile("engines-up", Text("Engines up", "在线引擎"),
                 Text("Engines whose metrics can be scraped.", "能采集到指标的引擎数。"),
                 "sum(k3:engines:count{S})", needs=("engines",), idle=Text("No engine is scraped", "未采集到任何引擎")),
            tile("engines-missing", Text("Engines missing", "缺失引擎"),
                 Text("Engines the configuration expects but which cannot be scraped; the state below names them.",
                      "配置期望但采集不到的引擎数。下方状态图可看出是哪一个。"),
                 f"sum({_MISSING_ENGINES})", needs=("replicas_expected", "engines"), limits=MISSING, low=0,
                 idle=Text("Set replicas.expected", "请设置 replicas.expected")),
            tile("alerts-firing", Text("Alerts firing", "触发中的告警"),
                 Text("Critical and warning alerts that fire now.", "当前触发的 critical 与 warning 告警数。"),
                 'sum(ALERTS{S,alertstate="firing",severity=~"critical|warning"}) or vector(0)',
                 limits=(Limit(value=1),), low=0),
            tile("requests-rate", Text("Requests", "请求速率"),
                 Text("Requests that ended per second, whatever the outcome.", "每秒结束的请求数，不论结果。"),
                 "sum(rate(k3:requests_finished:total{S}[$__rate_interval]))", unit="reqps",
                 needs=("requests_finished",)),
            tile("output-rate", Text("Output tokens", "输出 token"),
                 Text("Tokens generated per second by all chosen services.", "所选服务每秒生成的 token 数。"),
                 "sum(rate(k3:generated_tokens:total{S}[$__rate_interval]))", unit="count:tok/s",
                 needs=("generated_tokens",)),
            tile("errors-now", Text("Failed requests", "失败请求占比"),
                 Text("Share of requests that ended with an error of the engine or a 5xx answer.",
                      "因引擎错误或 5xx 失败的请求占比。"),
                 _FAILED.replace("{by} ", ""), unit="percentunit", needs=("requests_failed", "requests_finished"),
                 limits=ERRORS, low=0),
        )),
        Row(height=4, panels=(
            tile("ttft-now", Text("First token p99", "首 token 延迟 p99"),
                 Text("The slowest service's 99th percentile of the time to the first token in the last five minutes.",
                      "最近 5 分钟首 token 延迟的 99 分位，取最慢的服务。"),
                 f"max({_TTFT})", unit="s", needs=("time_to_first_token",),
                 limits=TTFT),
            tile("itl-now", Text("Inter-token p99", "token 间隔 p99"),
                 Text("The slowest service's 99th percentile of the time between two output tokens.",
                      "相邻输出 token 间隔的 99 分位，取最慢的服务。"),
                 f"max({_ITL})", unit="s", needs=("inter_token_latency",),
                 limits=ITL),
            tile("saturation-now", Text("Highest saturation", "最高饱和度"),
                 Text("The fullest service: the higher of its batch and its KV cache against their limits.",
                      "最满的服务的饱和度：批次占用与 KV 缓存占用相对上限的较高者。"),
                 "max(k3:saturation:ratio{S})", unit="percentunit", needs=("saturation",), limits=FULL, low=0),
            tile("kv-now", Text("Fullest KV cache", "最高 KV 使用率"),
                 Text("KV cache usage of the fullest engine.", "最满的引擎的 KV 缓存使用率。"),
                 "max(k3:kv_cache_usage:ratio{S})", unit="percentunit", needs=("kv_cache_usage",), limits=KV, low=0,
                 high=1),
            tile("balance-now", Text("Expert balance", "专家均衡度"),
                 Text("Mean over maximum load of the expert-parallel ranks of the least even service; 1 is even.",
                      "最不均衡服务的专家并行 rank 平均负载与最大负载之比；1 为完全均衡。"),
                 'min(k3:expert_balance:ratio{S,scope="rank",phase="all"})', unit="percentunit",
                 needs=("expert_balance",),
                 limits=BALANCE, good="high", low=0, high=1, decimals=1),
            tile("devices-lost", Text("Devices lost", "掉卡数"),
                 Text("Devices that nodes should have but whose driver no longer lists.",
                      "节点应有但驱动已看不到的加速卡数。"),
                 f"sum({_LOST})", needs=("accelerators_visible", "accelerators_expected"), limits=MISSING, low=0,
                 idle=Text("No device is read", "未采集到加速卡")),
        )),
        Row(height=3, lines=True, panels=(
            Panel("services", "table", Text("Services", "服务列表"),
                  Text("One line a service, the values of now. A name opens the page of that service.",
                       "每个服务一行，显示当前值。点击名称打开该服务的页面。"),
                  (
                      Query("sum by (service) (k3:engines:count{S})", needs=("engines",), column=Text("Engines",
                                                                                                      "引擎")),
                      Query(f"sum by (service) ({_MISSING_ENGINES})", needs=("replicas_expected", "engines"),
                            column=Text("Missing", "缺失"), limits=MISSING),
                      Query("sum by (service) (rate(k3:requests_finished:total{S}[$__rate_interval]))", unit="reqps",
                            needs=("requests_finished",), column=Text("Requests", "请求速率")),
                      Query("sum by (service) (rate(k3:generated_tokens:total{S}[$__rate_interval]))",
                            unit="count:tok/s",
                            needs=("generated_tokens",), column=Text("Output", "输出")),
                      Query(_TTFT, unit="s",
                            needs=("time_to_first_token",), column=Text("First token p99", "首 token p99"),
                            limits=TTFT),
                      Query(_ITL, unit="s",
                            needs=("inter_token_latency",), column=Text("Inter-token p99", "token 间隔 p99"),
                            limits=ITL),
                      Query("sum by (service) (k3:requests_waiting:count{S})", needs=("requests_waiting",),
                            column=Text("Waiting", "排队"), limits=(Limit("RequestsQueueing"),)),
                      Query("max by (service) (k3:kv_cache_usage:ratio{S})", unit="percentunit",
                            needs=("kv_cache_usage",),
                            column=Text("KV cache", "KV 缓存"), limits=KV),
                      Query("max by (service) (k3:saturation:ratio{S})", unit="percentunit", needs=("saturation",),
                            column=Text("Saturation", "饱和度"), limits=FULL),
                      Query('min by (service) (k3:expert_balance:ratio{S,scope="rank",phase="all"})',
                            unit="percentunit",
                            needs=("expert_balance",), column=Text("Expert balance", "专家均衡度"), limits=BALANCE,
                            good="high"),
                      Query("max by (service) (k3:accelerator_memory_usage:ratio{S})", unit="percentunit",
                            needs=("accelerator_memory_usage",), column=Text("Device memory", "显存"), limits=MEMORY),
                  ),
                  columns={"service": Text("Service", "服务")}, link="service",
                  idle=Text("No service is scraped", "未采集到任何服务")),
        )),
        Row(height=7, panels=(
            Panel("engine-state", "state-timeline", Text("State of the engines", "引擎状态"),
                  Text("Whether each engine's metrics could be scraped. A gap: Prometheus no longer knows the target.",
                       "每个引擎的指标能否采集。空白表示 Prometheus 已没有该目标。"),
                  (Query("min by (service, instance) (k3:engine_up:bool{I})", "{{service}} {{instance}}"),),
                  needs=("engine_up",), alerts=("EngineDown", "EngineReplicasLow"),
                  states={1: (Text("up", "正常"), GREEN), 0: (Text("down", "中断"), RED)},
                  idle=Text("No engine is scraped", "未采集到任何引擎")),
            Panel("alerts-now", "table", Text("Firing now", "当前告警"),
                  Text("Critical and warning alerts that fire now.", "当前触发的 critical 与 warning 告警。"),
                  (Query('max by (service, alertname, severity, action, instance)'
                         ' (ALERTS{S,alertstate="firing",severity=~"critical|warning"})'),),
                  columns={"alertname": Text("Alert", "告警"), "severity": Text("Severity", "级别"),
                           "service": Text("Service", "服务"), "instance": Text("Instance", "实例"),
                           "action": Text("Action", "处置")},
                  idle=Text("Nothing fires", "没有告警")),
        )),
        Row(height=7, panels=(
            graph("requests-by-service", Text("Requests", "请求速率"),
                  Text("Requests that ended per second.", "每秒结束的请求数。"),
                  Query("sum by (service) (rate(k3:requests_finished:total{S}[$__rate_interval]))", "{{service}}"),
                  unit="reqps", needs=("requests_finished",), low=0),
            graph("output-by-service", Text("Output tokens", "输出 token"),
                  Text("Tokens generated per second.", "每秒生成的 token 数。"),
                  Query("sum by (service) (rate(k3:generated_tokens:total{S}[$__rate_interval]))", "{{service}}"),
                  unit="count:tok/s", needs=("generated_tokens",), low=0),
            graph("ttft-by-service", Text("Time to first token, p99", "首 token 延迟 p99"),
                  Text("99th percentile, pooled over the engines of a service.",
                       "按服务内全部引擎合并计算的 99 分位。"),
                  Query(_TTFT, "{{service}}"),
                  unit="s", needs=("time_to_first_token",), limits=TTFT, low=0),
        )),
        Row(height=7, panels=(
            graph("saturation-by-service", Text("Saturation", "饱和度"),
                  Text("The higher of batch and KV cache against their limits: scale out before it reaches 1.",
                       "服务的批次占用或 KV 缓存占用相对上限的较高者：到 1 之前就应扩容。"),
                  Query("max by (service) (k3:saturation:ratio{S})", "{{service}}"),
                  unit="percentunit", needs=("saturation",), limits=FULL, low=0),
            graph("kv-by-service", Text("KV cache, fullest engine", "KV 缓存使用率（最满引擎）"),
                  Text("KV cache usage of the fullest engine of a service.", "服务内最满的引擎的 KV 缓存使用率。"),
                  Query("max by (service) (k3:kv_cache_usage:ratio{S})", "{{service}}"),
                  unit="percentunit", needs=("kv_cache_usage",), limits=KV, low=0, high=1),
            graph("waiting-by-service", Text("Requests waiting", "排队请求"),
                  Text("Requests that wait for capacity.", "等待容量的请求数。"),
                  Query("sum by (service) (k3:requests_waiting:count{S})", "{{service}}"),
                  needs=("requests_waiting",), low=0),
        )),
    ),
)  # fmt: skip
