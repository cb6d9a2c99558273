"""GPUs and NPUs side by side: are all there, healthy, cool, and how full."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import GREEN, ORANGE, RED, Board, Limit, Panel, Query, Row, graph, tile

_RATE = "[$__rate_interval]"
_OF_DEVICE = "{{instance}} / {{device}}"
_NONE_READ = Text("No device is read", "未采集到加速卡")
_FINE = Text("None", "无")
BAD = (Limit(value=1, colour=RED),)
MEMORY = (Limit("AcceleratorMemoryHigh"),)
HOT = (Limit("AcceleratorHot"),)
_MISSING = (
    "clamp_min(k3:accelerators_expected:count{I}"
    " - (k3:accelerators_visible:count{I} or 0 * k3:accelerators_expected:count{I}), 0)"
)


def _each(value: str) -> str:
    return f"max by (service, instance, vendor, device) ({value})"


def _rows(value: str) -> str:
    """Devices as the rows of a heat map: those of a node stand together, in the order of their numbers."""
    numbered = f'label_replace({_each(value)}, "device", "0$1", "device", "([0-9])")'
    return f'max by (service, card) (label_join({numbered}, "card", " / ", "instance", "device"))'


_TILES = Row(height=4, panels=(
    tile("acc-visible", Text("Devices", "加速卡"),
         Text("Devices whose driver lists them.", "驱动可见的加速卡数。"),
         "sum(k3:accelerators_visible:count{I})", needs=("accelerators_visible",), idle=_NONE_READ),
    tile("acc-missing", Text("Lost", "掉卡"),
         Text("Devices that nodes should have but whose driver no longer lists. The engine on that node stops.",
              "节点应有但驱动已看不到的加速卡。该节点上的引擎会停止。"),
         f"sum({_MISSING})", needs=("accelerators_visible", "accelerators_expected"), limits=BAD, low=0,
         idle=_NONE_READ),
    tile("acc-unhealthy", Text("Unhealthy", "不健康"),
         Text("Devices that report themselves as unhealthy.", "自报不健康的加速卡数。"),
         "count(k3:accelerator_health:bool{I} == 0) or 0 * count(k3:accelerator_health:bool{I})",
         needs=("accelerator_health",), limits=BAD, low=0, idle=_NONE_READ),
    tile("acc-throttled", Text("Throttled", "降频"),
         Text("Devices whose clocks are held down by heat or power hardware.", "因温度或供电硬件被降频的加速卡数。"),
         f"count({_each('k3:accelerator_throttled:bool{I}')} == 1)"
         f" or 0 * count({_each('k3:accelerator_throttled:bool{I}')})",
         needs=("accelerator_throttled",), limits=(Limit(value=1),), low=0, idle=_NONE_READ),
    tile("acc-memory-max", Text("Fullest memory", "最高显存使用率"),
         Text("Memory of the fullest device. Engines fill memory on purpose up to what they reserve.",
              "最满的卡的显存使用率。引擎会有意占满其预留的显存。"),
         "max(k3:accelerator_memory_usage:ratio{I})", unit="percentunit", needs=("accelerator_memory_usage",),
         limits=MEMORY, low=0, high=1, decimals=1, idle=_NONE_READ),
    tile("acc-hottest", Text("Hottest", "最高温度"),
         Text("Temperature of the hottest device.", "最热的卡的温度。"),
         "max(k3:accelerator_temperature:celsius{I})", unit="celsius", needs=("accelerator_temperature",), limits=HOT,
         idle=_NONE_READ),
    tile("acc-power-sum", Text("Power", "总功耗"),
         Text("Power drawn by all devices.", "全部加速卡的功耗之和。"),
         "sum(k3:accelerator_power:watts{I})", unit="watt", needs=("accelerator_power",), idle=_NONE_READ),
    tile("acc-stale", Text("Not read", "读取超时"),
         Text("Devices whose last good read is older than a minute: a driver call hangs.",
              "超过一分钟未成功读取的加速卡：驱动调用可能卡死。"),
         "count(k3:accelerator_read_age:seconds{I} > 60) or 0 * count(k3:accelerator_read_age:seconds{I})",
         needs=("accelerator_read_age",), limits=BAD, low=0, idle=_NONE_READ),
))  # fmt: skip

_STATES = Row(title=Text("Are they all there and well", "是否在位且健康"), height=9, panels=(
    Panel("acc-nodes", "table", Text("Nodes", "节点"),
          Text("Devices that are there and that should be, on each node, and what is wrong with them.",
               "各节点可见与应有的加速卡数，以及异常情况。"),
          (
              Query("max by (service, instance, vendor) (k3:accelerators_visible:count{I})", column=Text("Visible",
                                                                                                         "可见")),
              Query("max by (service, instance, vendor) (k3:accelerators_expected:count{I})",
                    needs=("accelerators_expected",), column=Text("Expected", "应有")),
              Query(f"max by (service, instance, vendor) ({_MISSING})", needs=("accelerators_expected",),
                    column=Text("Lost", "掉卡"), limits=BAD),
              Query("max by (service, instance, vendor) (k3:accelerator_memory_usage:ratio{I})", unit="percentunit",
                    needs=("accelerator_memory_usage",), column=Text("Memory", "显存"), limits=MEMORY),
              Query("max by (service, instance, vendor) (k3:accelerator_temperature:celsius{I})", unit="celsius",
                    needs=("accelerator_temperature",), column=Text("Hottest", "最高温度"), limits=HOT),
              Query("sum by (service, instance, vendor) (k3:accelerator_power:watts{I})", unit="watt",
                    needs=("accelerator_power",), column=Text("Power", "功耗")),
          ),
          needs=("accelerators_visible",), alerts=("AcceleratorLost",), idle=_NONE_READ,
          columns={"instance": Text("Node", "节点"), "service": Text("Service", "服务"),
                   "vendor": Text("Vendor", "厂商")}),
    Panel("acc-health", "state-timeline", Text("Health", "健康状态"),
          Text("What each device says of itself. Unhealthy: drain the node and replace the device.",
               "各卡自报的健康状态。不健康：驱逐节点并更换设备。"),
          (Query("min by (service, instance, vendor, device) (k3:accelerator_health:bool{I})", _OF_DEVICE),),
          needs=("accelerator_health",), alerts=("AcceleratorUnhealthy",),
          states={1: (Text("healthy", "健康"), GREEN), 0: (Text("unhealthy", "异常"), RED)}, idle=_NONE_READ),
))  # fmt: skip

_MEMORY = Row(title=Text("Memory", "显存"), height=9, panels=(
    graph("acc-memory", Text("Memory of each device", "各卡显存使用率"),
          Text("Used and reserved memory over the total. The dashed line lies above what the engine reserves: beyond "
               "it is memory that nobody planned.",
               "已用加保留显存占总量之比。虚线高于引擎预留值：超过它就是计划外的占用。"),
          Query(_each("k3:accelerator_memory_usage:ratio{I}"), _OF_DEVICE),
          unit="percentunit", needs=("accelerator_memory_usage",), limits=MEMORY, alerts=("AcceleratorMemoryHigh",),
          low=0, high=1, many=True, idle=_NONE_READ),
    graph("acc-memory-growth", Text("Growth over the last hour", "近 1 小时显存增长"),
          Text("Memory used now less the minimum of the hour. Engines allocate at the start: steady growth is a leak.",
               "当前用量减去 1 小时内最小值。引擎启动时即完成分配，持续增长说明有泄漏。"),
          Query(_each("k3:accelerator_memory_used:bytes{I} - min_over_time(k3:accelerator_memory_used:bytes{I}[1h])"),
                _OF_DEVICE),
          unit="bytes", needs=("accelerator_memory_used",), alerts=("AcceleratorMemoryGrowing",), low=0, many=True,
          idle=_NONE_READ),
))  # fmt: skip

_WORK = Row(title=Text("Work, heat and power", "负荷、温度与功耗"), height=9, panels=(
    Panel("acc-utilization", "heatmap", Text("Utilisation of each device", "各卡利用率"),
          Text("Share of time in which a kernel ran; not how much of the device it used.",
               "有算子运行的时间占比，不代表算力用满。"),
          (Query(_rows("k3:accelerator_utilization:ratio{I}"), "{{card}}"),), unit="percentunit",
          needs=("accelerator_utilization",), low=0, high=1, idle=_NONE_READ),
    Panel("acc-power", "heatmap", Text("Power of each device", "各卡功耗"),
          Text("A device that draws much less than its neighbours at the same load waits for others or is throttled.",
               "同样负载下功耗明显低于相邻卡，说明在等待或被降频。"),
          (Query(_rows("k3:accelerator_power:watts{I}"), "{{card}}"),), unit="watt", needs=("accelerator_power",),
          low=0, idle=_NONE_READ),
))  # fmt: skip

_HEAT = Row(height=9, panels=(
    graph("acc-temperature", Text("Temperature", "温度"),
          Text("Above the line the clocks will be held down: look at cooling and at neighbours.",
               "超过虚线将触发降频：检查散热与相邻设备。"),
          Query(_each("k3:accelerator_temperature:celsius{I}"), _OF_DEVICE),
          unit="celsius", needs=("accelerator_temperature",), limits=HOT, alerts=("AcceleratorHot",), many=True,
          idle=_NONE_READ),
    Panel("acc-throttle", "state-timeline", Text("Throttling", "降频原因"),
          Text("Reasons for which the clocks are held down. Heat: cooling. Hardware: power supply or cabling.",
               "降频原因。温度类：检查散热；硬件类：检查供电或线缆。"),
          (Query("max by (service, instance, device, reason) (k3:accelerator_throttled:bool{I}) == 1",
                 "{{instance}} {{device}} {{reason}}"),),
          needs=("accelerator_throttled",), alerts=("AcceleratorThrottled",),
          states={1: (Text("throttled", "降频"), ORANGE), 0: (Text("free", "正常"), GREEN)},
          idle=Text("No device is throttled", "没有卡降频")),
))  # fmt: skip

_ERRORS = Row(title=Text("Errors, readings and links", "错误、读取与链路"), height=8, panels=(
    graph("acc-errors", Text("Errors by kind", "错误（按类型）"),
          Text("Errors counted by the driver in the shown interval: XIDs, uncorrectable ECC, remaps, error codes.",
               "驱动统计的错误次数：XID、不可纠正 ECC、行重映射、错误码等。"),
          # a kind appears with its first event, which is no increase yet
          Query(f"sum by (service, instance, device, kind) (increase(k3:accelerator_errors:total{{I}}{_RATE})"
                " > 0 or (k3:accelerator_errors:total{I} unless k3:accelerator_errors:total{I} offset "
                "$__rate_interval) > 0)",
                "{{instance}} {{device}} {{kind}}"),
          needs=("accelerator_errors",), alerts=("AcceleratorApplicationError",), low=0,
          idle=Text("No errors in this time", "该时段没有错误")),
    graph("acc-read-age", Text("Age of the last good read", "距上次成功读取"),
          Text("Time since each device was read with success: a steady climb is a hung driver call.",
               "距上次成功读取各卡的时间：持续上升说明驱动调用卡死。"),
          Query(_each("k3:accelerator_read_age:seconds{I}"), _OF_DEVICE),
          unit="s", needs=("accelerator_read_age",), limits=(Limit(value=60, colour=RED),),
          alerts=("AcceleratorReadStale",), low=0, many=True, idle=_NONE_READ),
))  # fmt: skip

_NOW = Row(height=7, panels=(
    Panel("acc-faults", "table", Text("Faults reported now", "当前故障码"),
          Text("Error codes of the maker that devices report now, and memory rows that could not be remapped.",
               "设备当前上报的厂商故障码，以及无法重映射的显存行。"),
          (Query("max by (service, instance, vendor, device, code) (k3:accelerator_fault:bool{I}) == 1"),),
          needs=("accelerator_fault",),
          columns={"instance": Text("Node", "节点"), "device": Text("Device", "卡号"), "code": Text("Code", "故障码"),
                   "vendor": Text("Vendor", "厂商")}, idle=_FINE),
    Panel("acc-links", "state-timeline", Text("Links down", "链路中断"),
          Text("Links that are down. First suspect when expert parallelism over nodes slows.",
               "处于断开状态的链路。跨节点专家并行变慢时先查这里。"),
          (Query("min by (service, instance, device, link) (k3:accelerator_link_up:bool{I}) == 0",
                 "{{instance}} {{device}} {{link}}"),),
          needs=("accelerator_link_up",), alerts=("AcceleratorLinkDown",),
          states={0: (Text("down", "断开"), RED), 1: (Text("up", "正常"), GREEN)},
          idle=Text("All links are up", "链路全部正常")),
))  # fmt: skip

BOARD = Board(
    "accelerators", Text("Accelerators", "加速卡"),
    Text("GPUs and NPUs: whether all are there and healthy, their memory, heat, power, errors and links.",
         "GPU 与 NPU：是否在位与健康，以及显存、温度、功耗、错误和链路。"),
    subject="accelerators_visible", services="k3:accelerators_visible:count",
    instances="k3:accelerators_visible:count", unowned=True,
    rows=(_TILES, _STATES, _MEMORY, _WORK, _HEAT, _ERRORS, _NOW),
)  # fmt: skip
