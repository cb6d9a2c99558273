"""Wraps ``EplbState.step`` where it is the one this plugin understands, and refuses it where it is not.

Found by inspection, not by version: vLLM 0.11.1 to 0.33.0 fit, 0.9.2 to 0.11.0 (one state for each model) do not.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import time
from types import ModuleType
from typing import Any

from k3observe.exporters.vllm_plugin.publisher import Publisher
from k3observe.exporters.vllm_plugin.settings import Settings

log = logging.getLogger("vllm.plugins.k3observe_experts")

MARK = "__k3observe_publisher__"
_PARAMETERS = ["self", "is_dummy", "is_profile", "log_stats"]
_STATE = {"model_states", "expert_rearrangement_step", "expert_load_window_step", "expert_load_window_size"}
_MODEL_STATE = {"expert_load_pass", "expert_load_window", "physical_to_logical_map", "model_name", "model"}


def refusal(module: ModuleType) -> str | None:
    """Return why the load balancer in ``module`` is not one the plugin understands; None where it is."""
    state, model_state = getattr(module, "EplbState", None), getattr(module, "EplbModelState", None)
    if state is None or model_state is None:
        return "this vLLM has no EplbState with EplbModelState: 0.11.1 or newer is needed"
    parameters = list(inspect.signature(state.step).parameters)
    if parameters != _PARAMETERS:
        return f"EplbState.step has the parameters {', '.join(parameters)}"
    unused = _STATE - set(inspect.unwrap(state.step).__code__.co_names)
    if unused:
        return f"EplbState.step does not use {', '.join(sorted(unused))}"
    missing = _MODEL_STATE - set(getattr(model_state, "__annotations__", {}))
    if missing:
        return f"EplbModelState lacks {', '.join(sorted(missing))}"
    if not callable(getattr(module, "get_ep_group", None)):
        return "the module has no get_ep_group"
    return None


def patch(module: ModuleType, settings: Settings) -> None:
    """Wrap ``step`` and ``rearrange`` of ``module.EplbState`` once, or log one line that says why not."""
    state = getattr(module, "EplbState", None)
    if hasattr(getattr(state, "step", None), MARK):
        return
    reason = refusal(module)
    if state is None or reason:
        log.warning("expert loads are not published: %s", reason)
        return
    publisher = Publisher(module.get_ep_group, settings)
    state.step = _step(state.step, publisher, settings.every)
    if callable(getattr(state, "rearrange", None)):
        state.rearrange = _rearrange(state.rearrange, publisher)
    log.info(
        "expert loads are published to %s every %d steps with detail %s as instance %s, pid %d",
        settings.directory, settings.every, settings.detail, settings.instance, os.getpid())


def _step(original: Any, publisher: Publisher, every: int) -> Any:
    @functools.wraps(original)
    def step(self: Any, is_dummy: bool = False, is_profile: bool = False, log_stats: bool = False) -> Any:
        result = original(self, is_dummy, is_profile, log_stats)
        try:
            # A profile step does not move the counter and comes before the warm-up passes, which are not to count.
            if publisher.on and not is_profile:
                if not is_dummy:
                    publisher.steps += 1
                if publisher.moving:
                    publisher.moved(self)
                # The counter is the same on all ranks at each pass: vLLM's own collectives depend on it.
                if not self.expert_rearrangement_step % every:
                    publisher.publish(self)
        except Exception as error:
            publisher.failed(error)
        return result

    setattr(step, MARK, publisher)
    return step


def _rearrange(original: Any, publisher: Publisher) -> Any:
    @functools.wraps(original)
    def rearrange(self: Any, *args: Any, **kwargs: Any) -> Any:
        began, wall = time.monotonic(), time.time()
        result = original(self, *args, **kwargs)
        try:
            # A profile run moves nothing; without execute_shuffle (0.19 and older) loads are only collected.
            profile = kwargs.get("is_profile", args[0] if args else False)
            if publisher.on and not profile and kwargs.get("execute_shuffle", True):
                publisher.rearranged(self, wall, time.monotonic() - began)
        except Exception as error:
            publisher.failed(error)
        return result

    return rearrange
