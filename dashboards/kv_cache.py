"""The KV cache: how full, how useful, and what happens when it is full."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import BLUE, ORANGE, RED, Board, Limit, Panel, Query, Row, graph, tile

_RATE = "[$__rate_interval]"
_USAGE = "k3:kv_cache_usage:ratio{E}"
_OF_ENGINE = "{{service}} {{instance}} / {{engine}}"
USAGE = (Limit("KVCacheUsageHigh"),)
HITS = (Limit("KVCacheHitRatioLow"),)
PREEMPTIONS = (Limit("KVCachePreemptionsHigh"),)
_OFF = Text("Prefix caching is off, or nothing was looked up", "未开启前缀缓存，或没有查询")

_TILES = Row(height=5, panels=(
    Panel("kv-max", "gauge", Text("Fullest engine", "最满引擎"),
         Text("KV cache usage of the fullest engine. Near 1 no further request is admitted.",
              "最满的引擎的 KV 缓存使用率。接近 1 时无法再接纳请求。"),
         (Query(f"max({_USAGE})"),), unit="percentunit", needs=("kv_cache_usage",), limits=USAGE, low=0, high=1),
    tile("kv-mean", Text("Mean of the engines", "引擎平均"),
         Text("Mean usage: far below the fullest one means that the router, not capacity, is the problem.",
              "平均使用率：若远低于最满引擎，问题在路由而不是容量。"),
         f"avg({_USAGE})", unit="percentunit", needs=("kv_cache_usage",), low=0, high=1),
    Panel("kv-hits", "gauge", Text("Hit ratio", "命中率"),
         Text("Prompt tokens found in the prefix cache over those looked up, in ten minutes.",
              "10 分钟内前缀缓存命中 token 与查询 token 之比。"),
         (Query("min(k3:kv_cache_hit:ratio_rate10m{S})"),), unit="percentunit", needs=("kv_cache_hit_ratio",),
         limits=HITS,
         good="high", low=0, high=1, idle=_OFF),
    tile("kv-saved", Text("Prefill saved", "节省的预填充"),
         Text("Prompt tokens per second that need not be computed because they were found.",
              "每秒因命中缓存而无需计算的提示词 token 数。"),
         f"sum(rate(k3:kv_cache_hits:total{{E}}{_RATE}))", unit="count:tok/s", needs=("kv_cache_hits",), idle=_OFF),
    tile("kv-preempted", Text("Preemptions", "抢占"),
         Text("Running requests thrown out per second because the cache was full: their work is done again.",
              "每秒因缓存不足被抢占的请求数：已完成的计算会重做。"),
         f"sum(rate(k3:preemptions:total{{E}}{_RATE}))", unit="ops", needs=("preemptions",), limits=PREEMPTIONS, low=0),
    tile("kv-waiting", Text("Waiting", "排队请求"),
         Text("Requests that wait for capacity: a full cache with none waiting is well used.",
              "等待容量的请求数：缓存满但无人排队属于充分利用。"),
         "sum(k3:requests_waiting:count{E})", needs=("requests_waiting",), low=0),
))  # fmt: skip

_FULL = Row(title=Text("How full", "用量"), height=9, panels=(
    graph("kv-usage", Text("KV cache usage of each engine", "各引擎 KV 缓存使用率"),
          Text("Share of the blocks that hold tokens of running requests; blocks that only cache prefixes count as "
               "free. Above the line: scale out, or route around the fullest engine.",
               "承载运行中请求的块占比；仅用于前缀缓存的块视为空闲。超过虚线：扩容，或让路由绕开最满的引擎。"),
          Query(f"max by (service, instance, engine) ({_USAGE})", _OF_ENGINE),
          unit="percentunit", needs=("kv_cache_usage",), limits=USAGE, alerts=("KVCacheUsageHigh", "KVCacheSaturated"),
          low=0, high=1, width=3),
    graph("kv-spread", Text("Fullest minus emptiest engine", "引擎间使用率差"),
          Text("How unevenly the router fills the engines of a service. Above 0.3 it wastes capacity.",
               "路由填充各引擎的不均衡程度。超过 0.3 时浪费容量。"),
          Query(f"max by (service) ({_USAGE}) - min by (service) ({_USAGE})", "{{service}}"),
          unit="percentunit", needs=("kv_cache_usage",), low=0, high=1, width=2),
))  # fmt: skip

_PRESSURE = Row(height=8, panels=(
    graph("kv-preemptions", Text("Preemptions", "抢占速率"),
          Text("Requests thrown out of the batch per second. Lower max_num_seqs or scale out.",
               "每秒被抢占的请求数。请调低 max_num_seqs 或扩容。"),
          Query(f"sum by (service, instance, engine) (rate(k3:preemptions:total{{E}}{_RATE}))", _OF_ENGINE),
          unit="ops", needs=("preemptions",), limits=PREEMPTIONS, alerts=("KVCachePreemptionsHigh",), low=0),
    graph("kv-queue", Text("Waiting requests", "排队请求"),
          Text("Requests that wait for capacity, on each engine.", "各引擎等待容量的请求数。"),
          Query("max by (service, instance, engine) (k3:requests_waiting:count{E})", _OF_ENGINE),
          needs=("requests_waiting",), low=0),
    graph("kv-running", Text("Running requests", "运行中请求"),
          Text("Requests in the batch. High usage with few of them means long contexts.",
               "批次中的请求数。请求少而使用率高说明上下文很长。"),
          Query("max by (service, instance, engine) (k3:requests_running:count{E})", _OF_ENGINE),
          needs=("requests_running",), limits=(Limit(fact="max_num_seqs"),), low=0),
))  # fmt: skip

_USEFUL = Row(title=Text("How useful: the prefix cache", "效果：前缀缓存"), height=9, panels=(
    graph("kv-hit-ratio", Text("Hit ratio", "命中率"),
          Text("Tokens found over tokens looked up in ten minutes. What is good depends on the workload: requests "
               "that share no prefix cannot hit. A fall after a deployment is often a prompt that starts with a date "
               "or an id.",
               "10 分钟内命中 token 与查询 token 之比。合理值取决于业务：没有公共前缀就不会命中。发布后下降常因提示词"
               "开头带有日期或 ID。"),
          Query("min by (service) (k3:kv_cache_hit:ratio_rate10m{S})", "{{service}}"),
          unit="percentunit", needs=("kv_cache_hit_ratio",), limits=HITS, alerts=("KVCacheHitRatioLow",), low=0, high=1,
          idle=_OFF),
    graph("kv-hit-engines", Text("Hit ratio of each engine", "各引擎命中率"),
          Text("Engines that differ: the router does not send a session to where its prefix is.",
               "引擎之间差异大：路由没有把会话发到其前缀所在的引擎。"),
          Query(f"(sum by (service, instance, engine) (rate(k3:kv_cache_hits:total{{E}}{_RATE}))"
                f" or 0 * sum by (service, instance, engine) (rate(k3:kv_cache_queries:total{{E}}{_RATE})))"
                f" / (sum by (service, instance, engine) (rate(k3:kv_cache_queries:total{{E}}{_RATE})) > 0)",
                _OF_ENGINE),
          unit="percentunit", needs=("kv_cache_hits", "kv_cache_queries"), low=0, high=1, idle=_OFF),
    graph("kv-tiers", Text("Tokens found, by tier", "命中 token（按层级）"),
          Text("Where prompt tokens were found, and how many were looked up.",
               "提示词 token 在哪一层命中，以及总查询量。"),
          Query(f"sum by (tier) (rate(k3:kv_cache_hits:total{{E}}{_RATE}))", "{{tier}}"),
          Query(f"sum(rate(k3:kv_cache_queries:total{{E}}{_RATE}))", Text("looked up", "查询"),
                needs=("kv_cache_queries",)),
          unit="count:tok/s", needs=("kv_cache_hits",), low=0, idle=_OFF,
          colours={"looked up": ORANGE, "查询": ORANGE, "device": BLUE}),
))  # fmt: skip

_OFFLOAD = Row(title=Text("Offloading and transfer", "卸载与传输"), collapsed=True, panels=(
    graph("kv-offload-usage", Text("Host space in use", "主机侧空间使用率"),
          Text("Share of the host's offload space in use.", "主机侧 KV 卸载空间使用率。"),
          Query("max by (service, instance, engine) (k3:kv_offload_usage:ratio{E})", _OF_ENGINE),
          unit="percentunit", needs=("kv_offload_usage",), low=0, high=1,
          idle=Text("Nothing is offloaded", "没有卸载")),
    graph("kv-offload-bytes", Text("Bytes moved", "搬移字节数"),
          Text("KV bytes written to (store) and read back from (load) the offload tier.",
               "写入（store）与读回（load）卸载层的 KV 字节数。"),
          Query(f"sum by (service, direction) (rate(k3:kv_offload_bytes:total{{E}}{_RATE}))",
                "{{service}} {{direction}}"),
          unit="Bps", needs=("kv_offload_bytes",), low=0, idle=Text("Nothing is offloaded", "没有卸载")),
    graph("kv-transfer-failures", Text("Failed transfers", "传输失败"),
          Text("Failed transfers of KV blocks between prefill and decode instances: look at the links between them.",
               "prefill 与 decode 实例间 KV 传输失败次数：请检查实例间链路。"),
          Query(f"sum by (service, instance, engine) (rate(k3:kv_transfer_failures:total{{E}}{_RATE}))", _OF_ENGINE),
          unit="ops", needs=("kv_transfer_failures",), low=0, limits=(Limit(value=0.01, colour=RED),),
          idle=Text("No transfer has failed", "没有传输失败")),
))  # fmt: skip

_NOTE = Panel(
    "kv-usage-bar", "bargauge", Text("Usage now", "当前使用率"),
    Text("The engines by how full they are now.", "按当前使用率排列的引擎。"),
    (Query(f"sort_desc(max by (service, instance, engine) ({_USAGE}))", "{{instance}} / {{engine}}"),),
    unit="percentunit", needs=("kv_cache_usage",), limits=USAGE, low=0, high=1, width=2,
)  # fmt: skip

BOARD = Board(
    "kv-cache", Text("KV cache", "KV 缓存"),
    Text("How full the KV cache of each engine is, how often prefixes are found, and what a full one costs.",
         "各引擎 KV 缓存的使用率、前缀命中率，以及缓存不足的代价。"),
    instances="k3:engine_up:bool", engines=("kv_cache_usage", "requests_running"),
    rows=(_TILES, Row((*_FULL.panels, _NOTE), _FULL.height, title=_FULL.title), _PRESSURE, _USEFUL, _OFFLOAD),
)  # fmt: skip
