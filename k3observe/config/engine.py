"""The engine of a service, its launch flags and the model it serves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from k3observe.config.errors import FieldError, did_you_mean
from k3observe.config.presets import PRESETS, Preset
from k3observe.config.section import Section
from k3observe.config.values import Count, Duration, EngineVersion, Line


class Model(Section):
    """The model a service serves."""

    preset: str | None = Field(None, description="Known model: " + ", ".join(sorted(PRESETS)))
    served_name: Line | None = Field(
        None, description="Name under which the engine serves it (label model_name); default the service's name")
    moe_layers: Count | None = Field(None, description="MoE layers; default the preset's")
    experts: Count | None = Field(None, description="Routed experts per layer; default the preset's")
    top_k: Count | None = Field(None, description="Experts per token; default the preset's")
    startup_grace: Duration | None = Field(
        None, description="Time the engine may take to load the model; default the preset's, else 10m")

    @model_validator(mode="after")
    def _preset_is_known(self) -> Model:
        if self.preset is not None and self.preset not in PRESETS:
            raise FieldError("is no known preset", ("preset",), self.preset, did_you_mean(self.preset, PRESETS))
        if self.startup_grace is not None and self.startup_grace.seconds < 1:
            raise FieldError("must be at least 1s", ("startup_grace",), str(self.startup_grace))
        return self

    @property
    def known(self) -> Preset:
        """The preset with what the configuration says instead."""
        base = PRESETS.get(self.preset or "", Preset())
        own = {k: v for k in ("moe_layers", "experts", "top_k", "startup_grace") if (v := getattr(self, k)) is not None}
        return base._replace(**own)


class EngineArgs(Section):
    """Launch flags as vLLM spells them; runbooks show those given, and each is a fact for `when` of your catalogue."""

    gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Share of device memory the engine reserves (SGLang: --mem-fraction-static)")
    max_num_seqs: Count | None = Field(
        None, description="Requests that run at once (SGLang: --max-running-requests)")
    max_model_len: Count | None = Field(None, description="Context length in tokens")
    tensor_parallel: Count = Field(1, description="Ranks of tensor parallelism")
    pipeline_parallel: Count = Field(1, description="Stages of pipeline parallelism")
    data_parallel: Count = Field(1, description="Ranks of data parallelism")
    dp_attention: bool = Field(False, description="SGLang --enable-dp-attention")
    expert_parallel: bool = Field(False, description="Experts are spread over the ranks")
    expert_parallel_size: Count | None = Field(
        None, description="Ranks of the expert-parallel group (SGLang --ep-size); default tensor x data parallel")
    eplb: bool = Field(False, description="Expert-parallel load balancer on")
    eplb_log_balancedness: bool | None = Field(
        None, description="vLLM logs the balance of experts; if false, the sidecar's source log has nothing to read")
    num_redundant_experts: int | None = Field(None, ge=0, le=10_000, description="Copies of experts beyond one of each")
    balancedness_report: Literal["off", "server_log", "prometheus", "both"] = Field(
        "off", description="SGLang --expert-balancedness-report-mode")
    prefix_caching: bool | None = Field(None, description="Prefix cache on; default by engine and model")
    kv_cache_dtype: Line | None = Field(None, description="Type of the KV cache's elements, e.g. fp8")
    quantization: Line | None = Field(None, description="Quantization of the weights, e.g. awq")
    block_size: Count | None = Field(None, description="Tokens per KV block")
    api_servers: Count = Field(1, description="vLLM --api-server-count")
    enable_metrics: bool = Field(
        True, description="SGLang --enable-metrics, MindIE MIES_SERVICE_MONITOR_MODE=1; false for vLLM's "
        "--disable-log-stats")
    kv_offload: bool = Field(
        False, description="A connector offloads KV blocks (vLLM) or hierarchical cache is on (SGLang); else its "
        "panels are left out")
    admission_limits: bool | None = Field(
        None, description="vLLM --max-num-queued-reqs or --max-num-queued-tokens; if false, nothing is ever refused")
    rust_frontend: bool = Field(False, description="vLLM VLLM_USE_RUST_FRONTEND=1")


class Engine(Section):
    """The serving engine and its version."""

    name: Line = Field(description="vllm, sglang, vllm-ascend, mindie, generic, or one of your own catalogue")
    version: EngineVersion | None = Field(None, description="Version, in quotes; default the newest known")
    args: EngineArgs = Field(EngineArgs(), description="Its launch flags; what is left out is the engine's default")
