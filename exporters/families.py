"""Every metric family the sidecar can serve: name, type, labels and a HELP that defines the value.

One table, so that the rules, the catalogue and the documentation cannot drift from what is exposed. Units are base
units (bytes, seconds, celsius, watts, ratios of 1); names without ``_total`` here are the family names of
prometheus_client, which appends ``_total`` to counters.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Kind = Literal["gauge", "counter"]


class Family(NamedTuple):
    """A metric family as it is exposed; ``name`` of a counter ends in ``_total``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    def new(self) -> GaugeMetricFamily | CounterMetricFamily:
        """Return an empty prometheus_client family to which a collector adds samples."""
        if self.kind == "counter":
            return CounterMetricFamily(self.name, self.help, labels=self.labels)
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


DEVICE = ("vendor", "device", "uuid")
BALANCE = ("model_name", "phase", "scope", "formula")
MODEL = ("model_name",)
ENGINE = ("model_name", "engine")
SOURCE = ("collector", "source")

ACCELERATOR_INFO = Family(
    "k3_accelerator_info", "gauge", (*DEVICE, "product", "driver", "bus"),
    "Always 1; the labels describe a device that can be read.")
MEMORY_TOTAL = Family("k3_accelerator_memory_total_bytes", "gauge", DEVICE, "Memory of the device.")
MEMORY_USED = Family(
    "k3_accelerator_memory_used_bytes", "gauge", DEVICE,
    "Memory allocated by processes, without what the driver reserves.")
MEMORY_RESERVED = Family(
    "k3_accelerator_memory_reserved_bytes", "gauge", DEVICE, "Memory the driver keeps for itself.")
MEMORY_FREE = Family("k3_accelerator_memory_free_bytes", "gauge", DEVICE, "Memory that can still be allocated.")
UTILIZATION = Family(
    "k3_accelerator_utilization_ratio", "gauge", DEVICE,
    "Share of time in which a kernel ran, 0 to 1; not how much of the device it used.")
TEMPERATURE = Family("k3_accelerator_temperature_celsius", "gauge", DEVICE, "Temperature of the chip.")
POWER = Family("k3_accelerator_power_watts", "gauge", DEVICE, "Power drawn now.")
POWER_LIMIT = Family("k3_accelerator_power_limit_watts", "gauge", DEVICE, "Enforced power limit.")
HEALTH = Family(
    "k3_accelerator_health", "gauge", DEVICE,
    "1 when the device says it is healthy, 0 when it says it is not; no series when it does not say.")
ECC_ERRORS = Family(
    "k3_accelerator_ecc_errors_total", "counter", (*DEVICE, "type"),
    "Memory errors by type (corrected, uncorrected) since the driver was loaded.")
XID_ERRORS = Family(
    "k3_accelerator_xid_errors_total", "counter", (*DEVICE, "xid"),
    "Critical XID events seen since the exporter started.")
READ_SUCCESS = Family(
    "k3_accelerator_read_success", "gauge", DEVICE, "1 when the last read of the device succeeded in time, else 0.")
LAST_READ = Family(
    "k3_accelerator_last_read_timestamp_seconds", "gauge", DEVICE, "Unix time of the last good read of the device.")
READ_ERRORS = Family(
    "k3_accelerator_read_errors_total", "counter", (*DEVICE, "error"), "Failed reads of the device, by error.")
VISIBLE = Family(
    "k3_accelerators_visible", "gauge", ("vendor",),
    "Devices the driver lists and does not report as lost; a device whose reads hang still counts.")
EXPECTED = Family(
    "k3_accelerators_expected", "gauge", ("vendor",), "Devices that should be there, from the exporter's flags.")
THROTTLED = Family(
    "k3_accelerator_throttled", "gauge", (*DEVICE, "reason"), "1 while the clocks are held down for this reason.")
ROW_REMAP_FAILURE = Family(
    "k3_accelerator_row_remap_failure", "gauge", DEVICE,
    "1 when a memory row could not be remapped: the device has to be replaced.")
FAULT = Family(
    "k3_accelerator_fault", "gauge", (*DEVICE, "code"), "1 while the device reports this error code of its maker.")
LINK_UP = Family("k3_accelerator_link_up", "gauge", (*DEVICE, "link"), "1 while the link is up, 0 while it is down.")

EXPERT_BALANCE = Family(
    "k3_expert_balance_ratio", "gauge", BALANCE,
    "Mean load over maximum load; 1 is even. By formula: mean_of_layers averages it over the layers with traffic, "
    "ratio_of_sums divides sums over layers (vLLM's log), reciprocal_of_mean inverts the layers' mean of maximum over "
    "mean (vLLM-Ascend's log).")
EXPERT_BALANCE_WORST = Family(
    "k3_expert_balance_worst_ratio", "gauge", BALANCE, "Mean load over maximum load of the least even layer.")
EXPERT_VARIANCE = Family(
    "k3_expert_load_variance", "gauge", BALANCE,
    "Variance of load over mean load (squared coefficient of variation), averaged over layers; 0 is even.")
EXPERT_VARIANCE_WORST = Family(
    "k3_expert_load_variance_worst", "gauge", BALANCE,
    "Variance of load over mean load of the least even layer.")
EXPERT_VARIANCE_BOUND = Family(
    "k3_expert_load_variance_lower_bound", "gauge", BALANCE,
    "The least variance that the known mean and maximum allow: (max/mean - 1)^2 / (n - 1).")
EXPERT_WINDOW_TOKENS = Family(
    "k3_expert_window_tokens", "gauge", ("model_name", "phase"),
    "Token-to-expert assignments per MoE layer in the window; relative in some layouts, few make a noisy balance.")
EXPERT_LAYER_BALANCE = Family(
    "k3_expert_layer_balance_ratio", "gauge", ("model_name", "layer"),
    "Mean load over maximum load of one MoE layer; off by default.")
EXPERT_RANK_LOAD = Family(
    "k3_expert_rank_load_ratio", "gauge", ("model_name", "rank"),
    "Load of an expert-parallel rank over the mean of all ranks, averaged over layers.")
EXPERT_RANK_INFO = Family(
    "k3_expert_rank_info", "gauge", ("model_name", "rank", "device", "uuid"),
    "Always 1; says which device an expert-parallel rank runs on.")
EXPERT_RANKS_SEEN = Family(
    "k3_expert_ranks_seen", "gauge", MODEL, "Expert-parallel ranks whose counts are in the window.")
EXPERT_RANKS_EXPECTED = Family(
    "k3_expert_ranks_expected", "gauge", MODEL, "Expert-parallel ranks of the group.")
EXPERT_HOTTEST = Family(
    "k3_expert_hottest_load_ratio", "gauge", ("model_name", "layer", "expert", "position"),
    "Load of the most loaded logical experts over the mean of their layer; off by default.")
EXPERT_DEAD = Family(
    "k3_experts_dead", "gauge", MODEL,
    "Logical experts, over all layers, that no token reached in the window; off by default.")
EXPERT_REBALANCES = Family(
    "k3_expert_rebalances_total", "counter", MODEL, "Rearrangements of experts seen since the exporter started.")
EXPERT_REBALANCE_SECONDS = Family(
    "k3_expert_rebalance_seconds", "gauge", MODEL, "Duration of the last rearrangement of experts.")

KV_USAGE = Family("k3_kv_cache_usage_ratio", "gauge", ENGINE, "Share of the KV cache in use, 0 to 1.")
KV_QUERIES = Family(
    "k3_kv_cache_queries_total", "counter", ENGINE, "Tokens looked up in the prefix cache.")
KV_HITS = Family(
    "k3_kv_cache_hits_total", "counter", (*ENGINE, "tier"), "Tokens found in the prefix cache, by tier.")
KV_HIT_RATIO = Family(
    "k3_kv_cache_hit_ratio", "gauge", (*ENGINE, "window"),
    "Tokens found over tokens looked up within the window; no series without lookups.")

SOURCE_UP = Family("k3_source_up", "gauge", SOURCE, "1 when the last read of the source succeeded, else 0.")
SOURCE_LAST_SUCCESS = Family(
    "k3_source_last_success_timestamp_seconds", "gauge", SOURCE, "Unix time of the last good reading of the source.")
SOURCE_READ_SECONDS = Family("k3_source_read_seconds", "gauge", SOURCE, "Duration of the last read of the source.")
SOURCE_ERRORS = Family(
    "k3_source_errors_total", "counter", (*SOURCE, "reason"), "Failed reads of the source, by reason.")
BUILD_INFO = Family(
    "k3observe_exporter_build_info", "gauge", ("version", "python"), "Always 1; version of the exporter.")
COLLECT_ERRORS = Family(
    "k3observe_exporter_collect_errors_total", "counter", ("collector",),
    "Scrapes that went without a collector's metrics because of an error in it.")

ALL: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
