"""One service in detail: traffic, latency, saturation and errors."""

from __future__ import annotations

from k3observe.catalogue.model import Text
from k3observe.dashboards.model import (
    BLUE,
    ORANGE,
    PURPLE,
    RED,
    Board,
    Limit,
    Query,
    Row,
    distribution,
    graph,
    quantiles,
    tile,
)

_RATE = "[$__rate_interval]"
_FINISHED = f"sum(rate(k3:requests_finished:total{{S}}{_RATE}))"
_P99 = "histogram_quantile(0.99, sum by (le) ({}_bucket:rate5m{{S}}))"


def _share(signal: str) -> str:
    """Requests of one outcome over all that ended; zero where that outcome was never counted."""
    return f"(sum(rate(k3:{signal}:total{{S}}{_RATE})) or 0 * {_FINISHED}) / ({_FINISHED} > 0)"


def _mean(series: str) -> str:
    return f"sum({series}_sum:rate5m{{S}}) / (sum({series}_count:rate5m{{S}}) > 0)"


_TILES = Row(height=4, panels=(
    tile("svc-requests", Text("Requests", "请求速率"),
         Text("Requests that ended per second.", "每秒结束的请求数。"),
         _FINISHED, unit="reqps", needs=("requests_finished",)),
    tile("svc-output", Text("Output tokens", "输出 token"),
         Text("Tokens generated per second.", "每秒生成的 token 数。"),
         f"sum(rate(k3:generated_tokens:total{{S}}{_RATE}))", unit="count:tok/s", needs=("generated_tokens",)),
    tile("svc-ttft", Text("First token p99", "首 token 延迟 p99"),
         Text("99th percentile of the time to the first token.", "首 token 延迟的 99 分位。"),
         _P99.format("k3:time_to_first_token_seconds"), unit="s", needs=("time_to_first_token",),
         limits=(Limit("TimeToFirstTokenHigh", colour=RED),)),
    tile("svc-itl", Text("Inter-token p99", "token 间隔 p99"),
         Text("99th percentile of the time between two output tokens.", "相邻输出 token 间隔的 99 分位。"),
         _P99.format("k3:inter_token_latency_seconds"), unit="s", needs=("inter_token_latency",),
         limits=(Limit("InterTokenLatencyHigh", colour=RED),)),
    tile("svc-waiting", Text("Waiting", "排队请求"),
         Text("Requests that wait for capacity on the fullest engine.", "排队最多的引擎上等待容量的请求数。"),
         "max(k3:requests_waiting:count{E})", needs=("requests_waiting",), limits=(Limit("RequestsQueueing"),), low=0),
    tile("svc-errors", Text("Failed", "失败占比"),
         Text("Share of requests that failed with an error of the engine or a 5xx answer.",
              "因引擎错误或 5xx 失败的请求占比。"),
         _share("requests_failed"), unit="percentunit", needs=("requests_failed", "requests_finished"),
         limits=(Limit("RequestErrorsHigh", colour=RED),), low=0),
    tile("svc-saturation", Text("Saturation", "饱和度"),
         Text("The higher of batch and KV cache against their limits.", "批次占用与 KV 缓存占用相对上限的较高者。"),
         "max(k3:saturation:ratio{S})", unit="percentunit", needs=("saturation",),
         limits=(Limit(value=0.8), Limit(value=1, colour=RED)), low=0),
))  # fmt: skip

_TRAFFIC = Row(title=Text("Traffic", "流量"), panels=(
    graph("svc-outcomes", Text("Requests by outcome", "请求结果"),
          Text("Requests that ended per second. Failed: an error of the engine or a 5xx; aborted: mostly the client "
               "left; rejected: refused because too many were queued (429).",
               "每秒结束的请求数。failed：引擎错误或 5xx；aborted：多为客户端断开；rejected：排队过多被拒绝（429）。"),
          Query(_FINISHED, Text("finished", "结束")),
          Query(f"sum(rate(k3:requests_failed:total{{S}}{_RATE}))", Text("failed", "失败"), needs=("requests_failed",)),
          Query(f"sum(rate(k3:requests_aborted:total{{S}}{_RATE}))", Text("aborted", "中止"),
                needs=("requests_aborted",)),
          Query(f"sum(rate(k3:requests_rejected:total{{S}}{_RATE}))", Text("rejected", "拒绝"),
                needs=("requests_rejected",)),
          unit="reqps", needs=("requests_finished",), low=0,
          colours={"finished": BLUE, "结束": BLUE, "failed": RED, "失败": RED, "aborted": ORANGE, "中止": ORANGE,
                   "rejected": PURPLE, "拒绝": PURPLE}),
    graph("svc-tokens", Text("Tokens", "token 吞吐"),
          Text("Prompt tokens read and output tokens generated per second; prompt tokens found in a cache are "
               "included.",
               "每秒处理的提示词 token 与生成的 token；含缓存命中的提示词 token。"),
          Query(f"sum(rate(k3:prompt_tokens:total{{S}}{_RATE}))", Text("prompt", "输入"), needs=("prompt_tokens",)),
          Query(f"sum(rate(k3:generated_tokens:total{{S}}{_RATE}))", Text("output", "输出")),
          unit="count:tok/s", needs=("generated_tokens",), low=0,
          colours={"prompt": PURPLE, "输入": PURPLE, "output": BLUE, "输出": BLUE}),
    graph("svc-output-engine", Text("Output tokens of each engine", "各引擎输出 token"),
          Text("An engine far below the others is drained, stuck, or out of the router's favour.",
               "明显低于其他引擎的引擎可能已被摘流、卡住或路由不均。"),
          Query(f"sum by (instance, engine) (rate(k3:generated_tokens:total{{E}}{_RATE}))",
                "{{instance}} / {{engine}}"),
          unit="count:tok/s", needs=("generated_tokens",), alerts=("EngineStalled",), low=0),
))  # fmt: skip

_LATENCY = (
    Row(title=Text("Latency", "延迟"), panels=(
        quantiles("svc-ttft-quantiles", Text("Time to first token", "首 token 延迟"),
                  Text("From the arrival of a request to its first token. The median rises with prompt length and "
                       "queue; p99 alone rises when single requests are starved. Look at queue time next.",
                       "从请求到达至返回首个 token。中位数随提示词长度与排队上升；只有 p99 上升说明个别请求被饿死。接"
                       "着看排队时间。"),
                  "k3:time_to_first_token_seconds", "time_to_first_token",
                  limits=(Limit("TimeToFirstTokenHigh", colour=RED),), alerts=("TimeToFirstTokenHigh",)),
        distribution("svc-ttft-heat", Text("Time to first token, distribution", "首 token 延迟分布"),
                     Text("How many requests per second fall into each bucket: two bands are two kinds of requests.",
                          "每个延迟区间每秒的请求数：出现两条带说明有两类请求。"),
                     "k3:time_to_first_token_seconds", "time_to_first_token"),
        quantiles("svc-itl-quantiles", Text("Inter-token latency", "token 间隔"),
                  Text("Time between two output tokens: what a reader feels. It rises with the batch, and with "
                       "prefills that interrupt decodes.",
                       "相邻输出 token 的间隔，即用户感受到的流畅度。批次变大或预填充打断解码时会上升。"),
                  "k3:inter_token_latency_seconds", "inter_token_latency",
                  limits=(Limit("InterTokenLatencyHigh", colour=RED),), alerts=("InterTokenLatencyHigh",)),
        distribution("svc-itl-heat", Text("Inter-token latency, distribution", "token 间隔分布"),
                     Text("Output tokens per second in each bucket.", "每个间隔区间每秒的 token 数。"),
                     "k3:inter_token_latency_seconds", "inter_token_latency"),
    )),
    Row(panels=(
        quantiles("svc-queue-quantiles", Text("Queue time", "排队时间"),
                  Text("Time a request waited before it was first scheduled. If it rises, capacity is short.",
                       "请求首次被调度前的等待时间。持续上升说明容量不足。"),
                  "k3:queue_time_seconds", "queue_time", limits=(Limit("QueueTimeHigh", colour=RED),),
                  alerts=("QueueTimeHigh",)),
        distribution("svc-queue-heat", Text("Queue time, distribution", "排队时间分布"),
                     Text("Requests per second in each bucket.", "每个区间每秒的请求数。"),
                     "k3:queue_time_seconds", "queue_time"),
        quantiles("svc-latency-quantiles", Text("Request latency", "请求总延迟"),
                  Text("From the arrival of a request to its end; long outputs make it long.",
                       "从请求到达至结束；输出越长越久。"),
                  "k3:request_latency_seconds", "request_latency", alerts=("RequestsTimedOut",)),
        distribution("svc-latency-heat", Text("Request latency, distribution", "请求总延迟分布"),
                     Text("Requests per second in each bucket.", "每个区间每秒的请求数。"),
                     "k3:request_latency_seconds", "request_latency"),
    )),
    Row(height=7, panels=(
        graph("svc-phases", Text("Where the time goes", "时间花在哪里"),
              Text("Mean time of a request in the queue, in prefill and in decode.",
                   "单个请求在排队、预填充、解码阶段的平均耗时。"),
              Query(_mean("k3:queue_time_seconds"), Text("queue", "排队"), needs=("queue_time",)),
              Query(_mean("k3:prefill_time_seconds"), Text("prefill", "预填充"), needs=("prefill_time",)),
              Query(_mean("k3:decode_time_seconds"), Text("decode", "解码")),
              unit="s", needs=("decode_time",), low=0, stacked=True,
              colours={"queue": RED, "排队": RED, "prefill": ORANGE, "预填充": ORANGE, "decode": BLUE, "解码": BLUE}),
    )),
)  # fmt: skip

_SATURATION = (
    Row(title=Text("Saturation", "饱和度"), panels=(
        graph("svc-running", Text("Running requests of each engine", "各引擎运行中请求"),
              Text("Requests in the batch. The dashed line is max_num_seqs: at it, every further request waits.",
                   "批次中的请求数。虚线为 max_num_seqs：达到后新请求只能排队。"),
              Query("max by (instance, engine) (k3:requests_running:count{E})",
                    "{{instance}} / {{engine}}"),
              needs=("requests_running",), limits=(Limit(fact="max_num_seqs"),), low=0),
        graph("svc-queue", Text("Waiting requests of each engine", "各引擎排队请求"),
              Text("Requests that wait for capacity. Scale out, or shed load at the gateway.",
                   "等待容量的请求数。请扩容，或在网关侧限流。"),
              Query("max by (instance, engine) (k3:requests_waiting:count{E})",
                    "{{instance}} / {{engine}}"),
              needs=("requests_waiting",), limits=(Limit("RequestsQueueing"),), alerts=("RequestsQueueing",), low=0),
        graph("svc-deferred", Text("Deferred requests", "被推迟的请求"),
              Text("Requests held back for another reason than capacity: a KV transfer, a LoRA slot, a grammar.",
                   "因非容量原因被推迟的请求：KV 传输、LoRA 槽位、语法编译等。"),
              Query("sum by (instance, engine) (k3:requests_deferred:count{E})",
                    "{{instance}} / {{engine}}"),
              needs=("requests_deferred",), low=0),
        graph("svc-saturation-line", Text("Saturation", "饱和度"),
              Text("The higher of batch and KV cache against their limits; autoscalers use it.",
                   "批次占用与 KV 缓存占用相对上限的较高者，也是自动扩缩容的依据。"),
              Query("max by (service) (k3:saturation:ratio{S})", "{{service}}"),
              unit="percentunit", needs=("saturation",), limits=(Limit(value=0.8), Limit(value=1, colour=RED)), low=0),
    )),
)  # fmt: skip

_ERRORS = Row(title=Text("Errors", "错误"), height=7, panels=(
    graph("svc-error-share", Text("Failed requests", "失败请求占比"),
          Text("Share of requests that failed with an error of the engine or a 5xx answer.",
               "因引擎错误或 5xx 失败的请求占比。"),
          Query(_share("requests_failed"), Text("failed", "失败")),
          unit="percentunit", needs=("requests_failed", "requests_finished"),
          limits=(Limit("RequestErrorsHigh", colour=RED),), alerts=("RequestErrorsHigh",), low=0,
          colours={"failed": RED, "失败": RED}),
    graph("svc-abort-share", Text("Aborted requests", "中止请求占比"),
          Text("Mostly clients that left: often a time-out of their own that is shorter than the latency here.",
               "多为客户端主动断开，常因其超时短于此处的延迟。"),
          Query(_share("requests_aborted"), Text("aborted", "中止")),
          unit="percentunit", needs=("requests_aborted", "requests_finished"),
          limits=(Limit("RequestAbortsHigh"),), alerts=("RequestAbortsHigh",), low=0,
          colours={"aborted": ORANGE, "中止": ORANGE}),
    graph("svc-reject-share", Text("Rejected requests", "拒绝请求占比"),
          Text("Requests refused with 429 because too many were queued: scale out.",
               "因排队过多以 429 拒绝的请求占比：请扩容。"),
          Query(_share("requests_rejected"), Text("rejected", "拒绝")),
          unit="percentunit", needs=("requests_rejected", "requests_finished"),
          limits=(Limit("RequestsRejected"),), alerts=("RequestsRejected",), low=0,
          colours={"rejected": PURPLE, "拒绝": PURPLE}),
))  # fmt: skip

_OBJECTIVES = Row(title=Text("Objectives", "SLO"), height=7, panels=(
    graph("svc-burn", Text("Burn rate of the error budget", "错误预算消耗速率"),
          Text("How many times faster than allowed the objectives were missed over an hour: at 1 the budget of 30 "
               "days lasts 30 days, at 14.4 two days.",
               "1 小时内未达标的速度是允许速度的多少倍：1 表示 30 天的预算正好用 30 天，14.4 表示两天耗尽。"),
          Query("max by (slo) (k3:slo_bad:ratio_rate1h{S} / on (service, slo) group_left () "
                "(max by (service, slo) (k3:slo_budget:ratio{S}) > 0))", "{{slo}}"),
          needs=("slo_bad_ratio_1h", "slo_budget"), alerts=("SLOBurnRateFast", "SLOBurnRateSlow"), low=0,
          limits=(Limit("SLOBurnRateFast", colour=RED), Limit("SLOBurnRateSlow"))),
    graph("svc-budget", Text("Error budget left", "剩余错误预算"),
          Text("What is left of the budget of 30 days; below zero the objective is missed.",
               "30 天错误预算的剩余比例；低于 0 即未达成 SLO。"),
          Query("min by (slo) (k3:slo_budget_remaining:ratio{S})", "{{slo}}"),
          unit="percentunit", needs=("slo_budget_remaining",), high=1, limits=(Limit(value=0, colour=RED),),
          idle=Text("No hour of traffic has passed yet", "流量尚未满 1 小时")),
))  # fmt: skip

_LENGTHS = Row(title=Text("Lengths of requests", "请求长度"), collapsed=True, panels=(
    distribution("svc-prompt-length", Text("Prompt length", "提示词长度"),
                 Text("Prompt tokens of a request. Longer prompts need more KV cache and a longer prefill.",
                      "单个请求的提示词长度。越长越占 KV 缓存，预填充也越久。"),
                 "k3:prompt_length_tokens", "prompt_length", unit="short"),
    distribution("svc-output-length", Text("Output length", "输出长度"),
                 Text("Output tokens of a request.", "单个请求的输出长度。"),
                 "k3:output_length_tokens", "output_length", unit="short"),
))  # fmt: skip

_DRAFTS = Row(title=Text("Speculative decoding and compute", "投机解码与算力"), collapsed=True, panels=(
    graph("svc-acceptance", Text("Accepted draft tokens", "投机解码接受率"),
          Text("Share of the proposed tokens that were accepted. Below about 40 % drafting costs more than it saves.",
               "被接受的投机 token 占比。低于约 40% 时投机解码得不偿失。"),
          Query(f"sum by (service) (rate(k3:accepted_tokens:total{{S}}{_RATE}))"
                f" / (sum by (service) (rate(k3:draft_tokens:total{{S}}{_RATE})) > 0)", "{{service}}"),
          unit="percentunit", needs=("draft_tokens", "accepted_tokens"), low=0, high=1,
          idle=Text("Nothing is drafted", "没有投机解码")),
    graph("svc-flops", Text("Estimated compute of a device", "单卡估算算力"),
          Text("Floating point operations per second and device, as the engine estimates them.",
               "引擎估算的单卡每秒浮点运算量。"),
          Query(f"avg by (service) (rate(k3:estimated_flops:total{{S}}{_RATE}))", "{{service}}"),
          unit="flops", needs=("estimated_flops",), low=0),
))  # fmt: skip

BOARD = Board(
    "service", Text("Service", "服务"),
    Text("Traffic, latency, saturation and errors of one service.", "单个服务的流量、延迟、饱和度与错误。"),
    single=True,
    instances="k3:engine_up:bool", engines=("requests_running", "kv_cache_usage", "generated_tokens"),
    rows=(_TILES, _TRAFFIC, *_LATENCY, *_SATURATION, _ERRORS, _OBJECTIVES, _LENGTHS, _DRAFTS),
)  # fmt: skip
