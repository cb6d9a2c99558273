"""Mixture-of-experts load: which rank is hot, in which layer, since when, why, and what it costs."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import BLUE, GREEN, ORANGE, PURPLE, RED, Board, Limit, Panel, Query, Row, graph, tile

_RATE = "[$__rate_interval]"
_ALL = '{S,scope="rank",phase="all"}'
_BALANCE = f"min by (service) (k3:expert_balance:ratio{_ALL})"
_WORST = f"min by (service) (k3:expert_balance_worst:ratio{_ALL})"
_VARIANCE = f"max by (service) (k3:expert_load_variance:ratio{_ALL})"
_VARIANCE_WORST = f"max by (service) (k3:expert_load_variance_worst:ratio{_ALL})"
# of the sidecars themselves: each instance of a service has ranks of its own, and the recorded series keep the worst
_LOAD = "max by (service, instance, rank) (k3_expert_rank_load_ratio{S})"
_HOT = "{limit ExpertRankOverloaded 1.5}"
_OUTPUT = f"sum by (service) (rate(k3:generated_tokens:total{{S}}{_RATE}))"
# The devices of the ranks: by UUID wherever they are, or by number on the node whose sidecar names them. A rank has one
# on each instance of the service.
_PLACE = "group by (service, instance, device, uuid) (k3:accelerator_memory_used:bytes{S})"
_ANYWHERE = 'max by (service, instance, rank, uuid) (k3_expert_rank_info{S,uuid!=""})'
_HERE = 'max by (service, instance, rank, device) (k3_expert_rank_info{S,uuid=""})'


def _placed(anywhere: str, here: str) -> str:
    """Values of ranks as values of their devices."""
    return (
        f"({_PLACE} * on (service, uuid) group_left (rank) max by (service, rank, uuid) ({anywhere})"
        f" or {_PLACE} * on (service, instance, device) group_left (rank) {here})"
    )


_RANK_PLACE = _placed('k3:expert_rank_device:info{S,uuid!=""}', _HERE)
_LOADED = " * on (service, instance, rank) group_left () " + _LOAD
_DEVICE_LOAD = _placed(_ANYWHERE + _LOADED, f"({_HERE}{_LOADED})")
# After a rearrangement the sidecar's window (5m) holds old and new passes, which an evaluation every 15s is done with
# in 20; the last of the steps in which it counts as recent compares nothing but new with nothing but old.
_SETTLED, _STEP = "{24 evaluations}", "{4 evaluations}"
_SHOWN = f"[$__range:{_STEP}]"
_OWN = 'min by (service, instance) (k3_expert_balance_ratio{S,scope="rank",phase="all"})'
_UNEVEN = f"({_OWN} < {{limit ExpertBalanceLow 0.8}})"
_POPULAR = "max by (service, instance, layer, expert) (k3_expert_hottest_load_ratio{S})"
_BEFORE = _OWN.replace("})", "} offset " + _SETTLED + ")")
_RECENT = (" and on (service, instance) (sum by (service, instance) "
           f"(increase(k3_expert_rebalances_total{{S}}[{_SETTLED}])) > 0)")  # fmt: skip
_GAIN = f"last_over_time((({_OWN} - {_BEFORE}){_RECENT}){_SHOWN})"
_SINCE = 'time() - min(ALERTS_FOR_STATE{S,alertname=~"ExpertBalanceLow|ExpertLoadVarianceHigh|ExpertRankOverloaded"})'

BALANCE = (Limit("ExpertBalanceLow"), Limit("ExpertBalanceLow", "worst", colour=RED))
VARIANCE = (Limit("ExpertLoadVarianceHigh"), Limit("ExpertLoadVarianceHigh", "worst", colour=RED))
OVERLOADED = (Limit("ExpertRankOverloaded"),)
TIMES = "suffix:×"
_YES_NO = {0: (Text("no", "否"), "text"), 1: (Text("yes", "是"), RED)}
_PLACES = {"instance": Text("Node", "节点"), "service": Text("Service", "服务")}
_NO_TOKENS = Text("No tokens in the window", "统计窗口内没有 token")
_NO_LAYERS = Text("The sidecar exports layers with --experts.layers", "sidecar 需加上 --experts.layers 才导出各层数据")
_NO_TOP = Text("The sidecar exports experts with --experts.top 10, where its source counts each expert",
               "sidecar 需加上 --experts.top 10，且数据源按专家计数")  # fmt: skip
_NO_DEVICE = Text("The source does not say which device a rank runs on: --experts.rank-device",
                  "数据源未说明 rank 所在的卡，可用 --experts.rank-device 指定")  # fmt: skip


def _ordered(value: str, label: str) -> str:
    """Rows whose names are sorted as text stand in the order of their numbers."""
    return f'label_replace({value}, "{label}", "0$1", "{label}", "([0-9])")'


def _by_rank(value: str) -> str:
    """The highest value of the devices that a rank of a node runs on."""
    return f"max by (service, instance, rank) ({_RANK_PLACE} * on (service, uuid) group_left () {_each(value)})"


def _by_place(value: str) -> str:
    """A value of devices by rank and device."""
    return f"max by (service, rank, instance, device) ({_RANK_PLACE} * on (service, uuid) group_left () {value})"


def _each(value: str) -> str:
    return f"max by (service, uuid) ({value})"


_POWER = "k3:accelerator_power:watts{S} / (k3:accelerator_power_limit:watts{S} > 0)"
_UTILIZATION = "k3:accelerator_utilization:ratio{S}"
_THROTTLED = "k3:accelerator_throttled:bool{S}"

_TILES = Row(height=5, panels=(
    Panel("ex-balance", "gauge", Text("Balance", "均衡度"),
         Text("Mean over maximum load of the ranks, mean over layers; 1 is even. The least even of the chosen "
              "services.",
              "各 rank 平均负载与最大负载之比，按层取平均；1 为完全均衡。取所选服务中最不均衡者。"),
         (Query(f"min({_BALANCE})"),), unit="percentunit", needs=("expert_balance",), limits=BALANCE[:1], good="high",
         low=0,
         high=1,
         decimals=1, idle=_NO_TOKENS),
    Panel("ex-worst", "gauge", Text("Worst layer", "最差层均衡度"),
         Text("The same for the least even layer: a good mean can hide one bad layer.",
              "最不均衡那一层的均衡度：平均值好看也可能掩盖个别坏层。"),
         (Query(f"min({_WORST})"),), unit="percentunit", needs=("expert_balance_worst",), limits=BALANCE[1:],
         good="high", low=0,
         high=1, decimals=1, idle=_NO_TOKENS),
    tile("ex-variance", Text("Load variance", "负载方差"),
         Text("Variance of load over mean load (CV squared); 0 is even.",
              "负载与均值之比的方差（CV 平方）；0 为完全均衡。"),
         f"max({_VARIANCE})", needs=("expert_load_variance",), limits=VARIANCE[:1], low=0, decimals=2, idle=_NO_TOKENS),
    tile("ex-tax", Text("Straggler tax", "拖尾损失"),
         Text("1 - balance: the share of the expert layers' time in which the other ranks wait for the busiest one.",
              "1 - 均衡度：专家层时间里其他 rank 等待最忙 rank 的占比。"),
         f"max(1 - {_BALANCE})", unit="percentunit", needs=("expert_balance",), low=0, high=1, decimals=1,
         idle=_NO_TOKENS),
    tile("ex-hot", Text("Hottest rank", "最热 rank"),
         Text("The rank with the most load, over the mean of all ranks. The heat map shows on which node, and since "
              "when.",
              "负载最高的 rank，数值为其负载与均值之比。所在节点与开始时间见热力图。"),
         "topk(1, max by (service, rank) (k3:expert_rank_load:ratio{S}))", legend="{{service}} rank {{rank}}",
         unit=TIMES, needs=("expert_rank_load",), limits=OVERLOADED, low=0, decimals=2, named=True, idle=_NO_TOKENS),
    tile("ex-since", Text("Uneven for", "不均衡已持续"),
         Text("Time since the first of the expert alerts that are pending or firing became true.",
              "当前待触发或触发中的专家告警里，最早一条的条件成立至今的时间。"),
         _SINCE, unit="s", needs=("expert_balance",), low=0, limits=(Limit(value=0),),
         idle=Text("Even: no expert alert is pending", "均衡：没有待触发的专家告警")),
    tile("ex-cause", Text("Routing or the device?", "路由问题还是硬件问题？"),
         Text("Routing: a rank is overloaded and no device of a rank is throttled. Device: one is throttled, so that "
              "its rank is late whatever its load is. The table of ranks and devices below shows which.",
              "路由：有 rank 过载，且各 rank 所在卡均未降频。硬件：有卡降频，无论负载高低其 rank 都会变慢。见下方"
              "“rank 与所在卡”。"),
         f"(sum({_LOAD} > bool {_HOT}) > bool 0) + 2 * (max({_by_rank(_THROTTLED)}) > bool 0)",
         needs=("expert_rank_load", "expert_rank_device", "accelerator_throttled"), idle=_NO_DEVICE,
         states={0: (Text("neither", "均无"), GREEN), 1: (Text("routing", "路由"), ORANGE),
                 2: (Text("device", "硬件"), RED), 3: (Text("both", "两者都有"), RED)}),
    tile("ex-gained", Text("Gained by the last rebalance", "上次重排的收益"),
         Text("Balance when the last rearrangement in the time shown had settled, less the balance before it: above "
              "zero it helped. Of several services or instances the least.",
              "所选时间内最近一次重排生效后的均衡度减去重排前：大于 0 说明有效。有多个服务或实例时取最小值。"),
         f"min({_GAIN})", unit="percentunit", needs=("expert_balance", "expert_rebalances"),
         limits=(Limit(value=0, colour=RED),), good="high", decimals=1,
         idle=Text("No rebalance in the time shown", "所选时间内没有重排")),
))  # fmt: skip

_WHICH = Row(title=Text("Which rank, and since when", "哪个 rank，从何时开始"), height=10, panels=(
    Panel("ex-rank-heat", "heatmap", Text("Load of each rank", "各 rank 负载"),
          Text("Load over the mean of all ranks: a bright line is a hot rank, and where it starts is since when. "
               "Routing that moved shows as a line that jumps to another rank.",
               "负载与各 rank 均值之比：亮线即热点 rank，其起点就是开始时间。亮线跳到别的 rank 说明路由发生了变化。"),
          (Query(_ordered(_LOAD, "rank"), "{{service}} {{sidecar}} {{rank}}"),), unit=TIMES,
          needs=("expert_rank_load",), low=0, high=3, decimals=2,
          alerts=("ExpertRankOverloaded",), idle=_NO_TOKENS, width=3),
    Panel("ex-rank-bars", "bargauge", Text("Hottest ranks now", "当前最热 rank"),
          Text("Load over the mean. Even routing is 1 everywhere.", "负载与均值之比。完全均衡时全为 1。"),
          (Query(f"topk(12, {_LOAD})", "{{service}} {{sidecar}} rank {{rank}}"),), unit=TIMES,
          needs=("expert_rank_load",), low=0, high=3, decimals=2, limits=OVERLOADED, idle=_NO_TOKENS, width=1),
))  # fmt: skip

_MUCH = Row(height=8, panels=(
    graph("ex-balance-line", Text("Balance", "均衡度"),
          Text("Mean over layers, and the worst layer. Below the dashed lines: rebalance. Blue marks are rebalances: "
               "what follows them shows whether they helped.",
               "按层平均的均衡度与最差层。低于虚线请重新均衡。蓝色标记为重排，其后的走势说明重排是否有效。"),
          Query(_BALANCE, Text("{{service}} mean", "{{service}} 平均")),
          Query(_WORST, Text("{{service}} worst layer", "{{service}} 最差层"), needs=("expert_balance_worst",)),
          unit="percentunit", needs=("expert_balance",), limits=BALANCE, alerts=("ExpertBalanceLow",), low=0, high=1,
          idle=_NO_TOKENS,
          colours={"mean": BLUE, "平均": BLUE, "worst layer": ORANGE, "最差层": ORANGE}),
    graph("ex-variance-line", Text("Load variance", "负载方差"),
          Text("Variance of load over mean load. With one hot rank of 8, 0.3 means that it carries 2.45 times the "
               "mean; of 64, 5.35 times.",
               "负载与均值之比的方差。8 个 rank 中只有一个热点时，0.3 表示其负载为均值的 2.45 倍；64 个时为 5.35 倍。"),
          Query(_VARIANCE, Text("{{service}} mean", "{{service}} 平均")),
          Query(_VARIANCE_WORST, Text("{{service}} worst layer", "{{service}} 最差层"),
                needs=("expert_load_variance_worst",)),
          needs=("expert_load_variance",), limits=VARIANCE, alerts=("ExpertLoadVarianceHigh",), low=0, idle=_NO_TOKENS,
          colours={"mean": BLUE, "平均": BLUE, "worst layer": ORANGE, "最差层": ORANGE}),
    graph("ex-cost", Text("Output tokens lost to the busiest rank", "最忙 rank 造成的吞吐损失"),
          Text("At most so many more output tokens a second would be generated if all ranks carried the same load: "
               "output x (1 / balance - 1). It is less where attention or transfers, not experts, set the pace.",
               "若各 rank 负载相同，最多还能多生成的 token：输出 ×（1 / 均衡度 - 1）。若瓶颈在注意力或通信，实际会更少"
               "。"),
          Query(f"{_OUTPUT} * on (service) (1 / ({_BALANCE} > 0) - 1)", Text("{{service}} lost", "{{service}} 损失")),
          unit="count:tok/s", needs=("expert_balance", "generated_tokens"), low=0, idle=_NO_TOKENS,
          colours={"lost": RED, "损失": RED}),
))  # fmt: skip

_WHERE = Row(title=Text("In which layer", "在哪一层"), height=10, panels=(
    Panel("ex-layer-heat", "heatmap", Text("Balance of each layer", "各层均衡度"),
          Text("Dark lines are uneven layers. One dark layer: a popular expert there. All dark: a hot rank in every "
               "layer, mostly a matter of the placement.",
               "暗线即不均衡的层。只有一层暗：该层有热门专家；全部变暗：某个 rank 在每层都热，多为专家放置问题。"),
          (Query(_ordered("min by (service, layer) (k3_expert_layer_balance_ratio{S})", "layer"),
                 "{{service}} {{layer}}"),),
          unit="percentunit", needs=("expert_rank_load",), low=0, high=1, idle=_NO_LAYERS, width=5),
    Panel("ex-layers", "table", Text("Least even layers", "最不均衡的层"),
          Text("The ten least even layers now.", "当前最不均衡的 10 层。"),
          (Query("bottomk(10, min by (service, instance, layer) (k3_expert_layer_balance_ratio{S}))",
                 unit="percentunit", column=Text("Balance", "均衡度"), limits=BALANCE, good="high",
                 order="ascending"),),
          needs=("expert_rank_load",), columns={"layer": Text("Layer", "层"), **_PLACES}, idle=_NO_LAYERS, width=3),
    Panel("ex-experts", "table", Text("Hottest experts", "最热专家"),
          Text("Load over the mean of their layer, by the model's own numbers, on the nodes that are uneven where some "
               "are. Redundant copies of these experts bring most.",
               "负载与该层均值之比，编号为模型自身的专家编号；有不均衡的节点时只列这些节点。给这些专家加冗余副本收益最大。"),
          (Query(f"topk(10, {_POPULAR} and on (service, instance) {_UNEVEN} or {_POPULAR} unless on () {_UNEVEN})",
                 column=Text("Load", "负载"), order="descending"),),
          unit=TIMES, needs=("expert_rank_load",), decimals=1,
          columns={"layer": Text("Layer", "层"), "expert": Text("Expert", "专家"), **_PLACES}, idle=_NO_TOP, width=3),
))  # fmt: skip

_WHY = Row(title=Text("Routing or the device", "路由问题还是硬件问题"), height=9, panels=(
    Panel("ex-power-heat", "heatmap", Text("Power of each rank's device", "各 rank 所在卡功耗"),
          Text("Power over its limit. A hot rank that draws more than the others computes: routing. Others that draw "
               "little wait for it. A rank with a normal load that is slow draws little itself: look at its device.",
               "功耗与上限之比。热点 rank 功耗高于其他卡说明它在计算：是路由问题；其他卡功耗低是在等它。负载正常却慢的"
               " rank 自身功耗低：检查它的卡。"),
          (Query(_ordered(_by_rank(_POWER), "rank"), "{{service}} {{sidecar}} {{rank}}"),), unit="percentunit",
          needs=("expert_rank_device", "accelerator_power", "accelerator_power_limit"), low=0, high=1, idle=_NO_DEVICE),
    Panel("ex-utilization-heat", "heatmap", Text("Utilisation of each rank's device", "各 rank 所在卡利用率"),
          Text("Share of time in which a kernel ran. Waiting in a collective counts as running: read it with the "
               "power.",
               "有算子运行的时间占比。集合通信中的等待也算运行，需与功耗对照。"),
          (Query(_ordered(_by_rank(_UTILIZATION), "rank"), "{{service}} {{sidecar}} {{rank}}"),), unit="percentunit",
          needs=("expert_rank_device", "accelerator_utilization"), low=0, high=1, idle=_NO_DEVICE),
    Panel("ex-ranks-table", "table", Text("Ranks and their devices", "rank 与所在卡"),
          Text("Hottest first. A throttled or hot device on the slow rank: the hardware. All devices alike: routing.",
               "按负载从高到低。慢 rank 的卡降频或过热：硬件问题；各卡状态一致：路由问题。"),
          (
              Query(f"max by (service, rank, instance, device) ({_DEVICE_LOAD})", unit=TIMES,
                    column=Text("Load", "负载"), decimals=2, limits=OVERLOADED, order="descending"),
              Query(_by_place(_each(_POWER)), unit="percentunit", needs=("accelerator_power",
                                                                         "accelerator_power_limit"),
                    column=Text("Power", "功耗")),
              Query(_by_place(_each(_UTILIZATION)), unit="percentunit", needs=("accelerator_utilization",),
                    column=Text("Utilisation", "利用率")),
              Query(_by_place(_each("k3:accelerator_temperature:celsius{S}")), unit="celsius",
                    needs=("accelerator_temperature",), column=Text("Temperature", "温度"),
                    limits=(Limit("AcceleratorHot"),)),
              Query(_by_place(_each(_THROTTLED)), needs=("accelerator_throttled",),
                    column=Text("Throttled", "降频"), unit="none", states=_YES_NO,
                    limits=(Limit(value=1, colour=RED),)),
          ),
          needs=("expert_rank_device", "expert_rank_load", "accelerator_memory_used"),
          columns={"rank": Text("Rank", "rank"), "instance": Text("Node", "节点"), "device": Text("Device", "卡号"),
                   "service": Text("Service", "服务")},
          idle=_NO_DEVICE, width=2),
))  # fmt: skip

_SKEW = Row(title=Text("Data-parallel engines", "数据并行引擎"), height=8, panels=(
    graph("ex-dp-running", Text("Running requests", "运行中请求"),
          Text("Data-parallel engines run their expert layers in step: the fullest sets the pace of all.",
               "数据并行引擎的专家层同步执行：最满的引擎决定整体速度。"),
          Query("max by (service, instance, engine) (k3:requests_running:count{E})",
                "{{service}} {{instance}} / {{engine}}"),
          needs=("expert_balance", "requests_running"), low=0),
    graph("ex-dp-waiting", Text("Waiting requests", "排队请求"),
          Text("Requests waiting on one engine while others are idle: the router is uneven.",
               "一个引擎排队而其他空闲：路由不均。"),
          Query("max by (service, instance, engine) (k3:requests_waiting:count{E})",
                "{{service}} {{instance}} / {{engine}}"),
          needs=("expert_balance", "requests_waiting"), low=0),
    graph("ex-dp-kv", Text("KV cache usage", "KV 缓存使用率"),
          Text("Usage of each engine.", "各引擎的使用率。"),
          Query("max by (service, instance, engine) (k3:kv_cache_usage:ratio{E})",
                "{{service}} {{instance}} / {{engine}}"),
          unit="percentunit", needs=("expert_balance", "kv_cache_usage"), limits=(Limit("KVCacheUsageHigh"),), low=0,
          high=1),
    graph("ex-dp-lost", Text("Attention tokens lost to the fullest rank", "等待最满 rank 损失的 token"),
          Text("Tokens of data-parallel attention that were scheduled, and those lost waiting (imbalance).",
               "数据并行注意力已调度的 token，与因等待损失的 token（imbalance）。"),
          Query(f"sum by (kind) (rate(k3:attention_tokens:total{{I}}{_RATE}))", "{{kind}}"),
          unit="count:tok/s", needs=("expert_balance", "attention_tokens"), low=0),
))  # fmt: skip

_REBALANCES = Row(title=Text("Rebalances", "重排"), height=8, panels=(
    graph("ex-rebalances", Text("Rebalances per hour", "每小时重排次数"),
          Text("Too few: the placement is that of yesterday's traffic. Too many: weights move all the time.",
               "过少：专家放置跟不上流量变化；过多：一直在搬移权重。"),
          Query("sum by (service) (increase(k3:expert_rebalances:total{S}[1h]))", "{{service}}"),
          needs=("expert_rebalances",), low=0, idle=Text("None seen", "未见重排")),
    Panel("ex-rebalance-table", "table", Text("Did the last rebalance help?", "上次重排是否有效？"),
          Text("The last rearrangement of each instance in the time shown: the balance before it, and after it had "
               "settled. Synchronous ones stop the engine while they take place.",
               "所选时间内各实例最近一次重排：重排前与生效后的均衡度。同步重排期间引擎停顿。"),
          (
              # windows that overlap by one sample, or an increase between two of them is in neither
              Query(f"time() - max_over_time((0 * sum by (service, instance) (increase(k3_expert_rebalances_total{{S}}"
                    f"[{{5 evaluations}}]) > 0) + time()){_SHOWN})", unit="s",
                    column=Text("Ago", "距今"), order="ascending"),
              Query(f"last_over_time(({_BEFORE}{_RECENT}){_SHOWN})", column=Text("Before", "重排前")),
              Query(f"last_over_time(({_OWN}{_RECENT}){_SHOWN})", column=Text("After", "重排后"), limits=BALANCE[:1],
                    good="high"),
              Query(_GAIN, column=Text("Gained", "收益"), limits=(Limit(value=0, colour=RED),), good="high"),
              Query("max by (service, instance) (k3_expert_rebalance_seconds{S}) and on (service, instance) "
                    "(sum by (service, instance) (increase(k3_expert_rebalances_total{S}[$__range])) > 0)",
                    unit="s", column=Text("Took", "耗时"), decimals=1),
          ),
          unit="percentunit", decimals=1, needs=("expert_balance", "expert_rebalances"), columns=_PLACES,
          idle=Text("No rebalance in the time shown", "所选时间内没有重排"), width=2),
    graph("ex-tokens", Text("Tokens in the window", "窗口内 token 数"),
          Text("Token assignments per layer in the window. With few tokens even a perfect router looks uneven.",
               "统计窗口内每层的 token 分配数。token 太少时即使路由完美也显得不均衡。"),
          Query("max by (service, phase) (k3:expert_window_tokens:count{S})", "{{service}} {{phase}}"),
          needs=("expert_window_tokens",), low=0, alerts=("ExpertSourceStale",), idle=_NO_TOKENS,
          colours={"all": PURPLE}),
    graph("ex-ranks", Text("Ranks seen", "可见 rank 数"),
          Text("Ranks whose counts are in the window. Fewer than the group has: a source is missing, see Monitoring.",
               "统计窗口内有数据的 rank 数。少于组内总数说明有数据源缺失，见“监控自身”。"),
          Query("max by (service) (k3:expert_ranks_seen:count{S})", "{{service}}"), needs=("expert_ranks_seen",),
          low=0, decimals=0, idle=_NO_TOKENS),
))  # fmt: skip

BOARD = Board(
    "experts", Text("Experts", "专家"),
    Text("Which expert-parallel rank is hot, in which layer, since when, whether routing or a device is the cause, "
         "and what it costs.",
         "哪个专家并行 rank 过热、在哪一层、从何时开始、是路由还是硬件原因，以及代价多大。"),
    subject="expert_balance", services="k3:expert_balance:ratio", instances="k3:engine_up:bool",
    engines=("requests_running", "kv_cache_usage"),
    rows=(_TILES, _WHICH, _MUCH, _WHERE, _WHY, _SKEW, _REBALANCES),
)  # fmt: skip
