"""Four ranks of vLLM's real ``EplbState`` on the CPU, with and without the plugin; prints one JSON line.

Run by ``tools/test_vllm.py`` with an unpacked vLLM on PYTHONPATH. Real are vLLM's plugin loader, its process groups
(gloo), ``EplbState`` with policy, weight moves and the loop of the asynchronous worker. Stand-ins: streams and timed
events, which a CPU has not, the model (6 layers, 16 experts and 4 replicas), and the router's kernel, written in torch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import inspect
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
import types
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tools.vllm_standins import (
    LAYERS,
    LOCAL,
    LOGICAL,
    PHYSICAL,
    WORLD,
    Stream,
    missing_groups,
    small_model,
    without_cuda,
)

TOP_K = 4


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname} {record.name} {record.getMessage()}")


class Rank:
    """One rank: builds the engine's state, runs it, and compares each publication with what it routed."""

    def __init__(self, options: argparse.Namespace, rank: int, port: int) -> None:
        self.options, self.rank, self.port = options, rank, port
        self.lines: list[str] = []
        self.errors: list[str] = []

    def run(self) -> dict[str, Any]:
        import torch
        import vllm.logger
        from vllm.plugins import load_general_plugins

        vllm.logger._configure_vllm_root_logger()
        logging.getLogger("vllm").addHandler(_Lines(self.lines))
        load_general_plugins()
        load_general_plugins()
        import vllm.distributed.eplb.async_worker as worker
        import vllm.distributed.eplb.eplb_state as eplb
        import vllm.distributed.parallel_state as groups

        without_cuda(torch)
        self.torch, self.eplb = torch, eplb
        config, parallel = self._config()
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(config):
            groups.init_distributed_environment(
                WORLD, self.rank, f"tcp://127.0.0.1:{self.port}", self.rank, "gloo")
            groups.initialize_model_parallel(WORLD, backend="gloo")
            missing_groups(groups, self.rank)
            self.model = small_model(eplb, self.rank)
            self.state = eplb.EplbState(parallel, torch.device("cpu"))
            checkpoint = types.SimpleNamespace(model="test/moe", compute_hash=lambda: "h")
            self.state.add_model(self.model, checkpoint)
            self.model_state = self.state.model_states["h"]
            if self.options.mode == "async":
                self._start_worker(worker, groups)
            if self.options.fault == "raising" and self.options.plugin == "on":
                self._break_plugin()
            return self._steps()

    def _config(self) -> tuple[Any, Any]:
        from vllm.config import DeviceConfig, ParallelConfig, VllmConfig
        from vllm.config.parallel import EPLBConfig

        wanted = {
            "window_size": self.options.window, "step_interval": self.options.step_interval,
            "num_redundant_experts": 0, "use_async": self.options.mode == "async",
            "log_balancedness": bool(self.options.log), "log_balancedness_interval": max(1, self.options.log),
            "communicator": "torch_gloo",
        }
        known = inspect.signature(EPLBConfig).parameters
        balancer = EPLBConfig(**{key: value for key, value in wanted.items() if key in known})
        parallel = ParallelConfig(
            tensor_parallel_size=WORLD, enable_expert_parallel=True, distributed_executor_backend="mp",
            eplb_config=balancer)
        config = VllmConfig(parallel_config=parallel, device_config=DeviceConfig(device="cpu"))
        object.__setattr__(config.parallel_config, "enable_eplb", True)  # refused on a CPU by the validator alone
        return config, config.parallel_config

    def _start_worker(self, worker: Any, groups: Any) -> None:
        """Run vLLM's own loop; only its start, which takes a device, is left out."""
        loop = worker.transfer_run_periodically
        group = (getattr(groups, "_EPLB", None) or groups._EP).device_group
        given = {"state": self.state, "ep_group": group, "eplb_group": group,
                 "cuda_stream": Stream(), "stream": Stream(), "device_stream": Stream()}
        arguments = {key: given[key] for key in inspect.signature(loop).parameters if key in given}

        def target() -> None:
            result = loop(**arguments)
            if inspect.iscoroutine(result):
                asyncio.run(result)

        self.state.async_worker = threading.Thread(target=target, daemon=True)
        self.state.async_worker.start()

    def _break_plugin(self) -> None:
        publisher = self.eplb.EplbState.step.__k3observe_publisher__

        def broken(_: Any) -> None:
            raise RuntimeError("broken on purpose")

        publisher._intervals = broken

    def _recording(self) -> bool:
        tensor = getattr(self.state, "should_record_tensor", None)
        return tensor is None or bool(tensor)

    def _forward(self, tokens: int) -> tuple[Any, Any]:
        """Do what the router's kernel does; return what was sent to each physical and to each logical expert."""
        import numpy as np

        torch = self.torch
        torch.distributed.barrier()  # the exchange of tokens between ranks keeps a real engine in lock-step
        sent = np.zeros((LAYERS, PHYSICAL), np.int64)
        chosen = np.zeros((LAYERS, LOGICAL), np.int64)
        recording = self._recording()
        for index, layer in enumerate(self.model.moe_layers):
            skew = np.roll(1 / (1 + np.arange(LOGICAL)) ** 0.8, index * 3)
            picks = [self.random.choice(LOGICAL, TOP_K, replace=False, p=skew / skew.sum()) for _ in range(tokens)]
            experts = torch.from_numpy(np.concatenate(picks))
            replicas = layer.replicas[experts].clamp(min=1)
            token = torch.arange(len(experts)) // TOP_K
            slots = layer.slots[experts, ((token * 2654435769) & 0xFFFFFFFF) % replicas]
            counts = torch.bincount(slots, minlength=PHYSICAL)
            if recording:
                layer.view += counts.to(torch.int32)
            sent[index] = counts.numpy()
            chosen[index] = torch.bincount(experts, minlength=LOGICAL).numpy()
        return sent, chosen

    def _digest(self) -> str:
        digest = hashlib.sha256()
        state = self.model_state
        tensors = [
            state.expert_load_pass, state.expert_load_window, state.physical_to_logical_map,
            state.logical_replica_count, state.logical_to_physical_map,
            *(layer.weights for layer in self.model.moe_layers)]
        if getattr(self.state, "should_record_tensor", None) is not None:
            tensors.append(self.state.should_record_tensor)
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
        digest.update(repr((self.state.expert_rearrangement_step, self.state.expert_load_window_step)).encode())
        return digest.hexdigest()

    def _steps(self) -> dict[str, Any]:
        import numpy as np

        options, state, log = self.options, self.state, bool(self.options.log)
        self.random, shared = np.random.default_rng(self.rank), np.random.default_rng(99)
        digest = hashlib.sha256()

        def step(is_dummy: bool, is_profile: bool) -> None:
            state.step(is_dummy, is_profile, log_stats=log)
            digest.update(self._digest().encode())

        self._forward(5)
        step(True, True)
        self._forward(3)  # a warm-up without a step: it stays in the pass and must reach no file
        sent_since, chosen_since = np.zeros((LAYERS, PHYSICAL), np.int64), np.zeros((LAYERS, LOGICAL), np.int64)
        chosen_all = np.zeros((LAYERS, LOGICAL), np.int64)
        sent_all = np.zeros((LAYERS, PHYSICAL), np.int64)
        real = recorded = intervals = right = mapped = blind = 0
        for index in range(options.steps):
            idle = bool((shared.random(WORLD) < 0.15)[self.rank])  # a data-parallel rank without requests
            if index == options.steps // 2:
                step(True, True)
            counted = self._recording()
            sent, chosen = self._forward(2 if idle else int(self.random.integers(5, 40)))
            if not idle:
                real += 1
                blind += not counted
                if counted:
                    recorded += 1
                    sent_since += sent
                    chosen_since += chosen
            step(idle, False)
            if options.mode == "async":
                time.sleep(0.002)
            if state.expert_rearrangement_step % options.every:
                continue
            if intervals and options.plugin == "on" and not options.fault and options.window > options.every:
                published = self._published(intervals)
                if published is not None:
                    model = published.models[0]
                    counts = np.array(model.counts).reshape(LAYERS, PHYSICAL)
                    right += bool((counts == sent_since).all()) and (model.steps, model.recorded) == (real, recorded)
                    mapped += self._mapped(model, counts, chosen_since)
                    sent_all += sent_since
                    chosen_all += chosen_since
                    totals = np.array(model.totals).reshape(LAYERS, PHYSICAL)
                    if not (totals == sent_all).all():
                        self.errors.append(f"totals differ after interval {intervals}")
            intervals += 1
            real = recorded = 0
            sent_since[:] = chosen_since[:] = 0
        placement = self.model_state.physical_to_logical_map
        moved = all(
            bool((layer.weights[slot] == placement[index, self.rank * LOCAL + slot] + 100 * index).all())
            for index, layer in enumerate(self.model.moe_layers) for slot in range(LOCAL))
        return {
            "digest": digest.hexdigest(), "intervals": max(0, intervals - 1), "right": right, "mapped": mapped,
            "blind": blind, "weights_follow_map": moved, "errors": self.errors, "lines": self.lines,
            "wrapped": hasattr(self.eplb.EplbState.step, "__k3observe_publisher__"),
            "sent": sent_all.tolist(), "chosen": chosen_all.tolist(),
        }

    def _published(self, sequence: int) -> Any:
        """Return this rank's file once it has the sequence number."""
        from k3observe.exporters.vllm_plugin import fileformat

        name = fileformat.file_name(os.environ["K3OBSERVE_EXPERTS_INSTANCE"], 0, self.rank)
        path = Path(self.options.directory, name)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                published = fileformat.decode(path.read_bytes())
                if published.sequence == sequence:
                    return published
            time.sleep(0.0005)
        self.errors.append(f"no file with sequence {sequence}")
        return None

    def _mapped(self, model: Any, counts: Any, chosen: Any) -> bool:
        """Whether the counts by the published map are those of the logical experts, where it says that it held."""
        import numpy as np

        if not model.settled:
            return False
        placement = np.array(model.logical).reshape(LAYERS, PHYSICAL)
        logical = np.zeros((LAYERS, LOGICAL), np.int64)
        for layer in range(LAYERS):
            np.add.at(logical[layer], placement[layer], counts[layer])
        if not (logical == chosen).all():
            self.errors.append("the map gives other logical experts")
        return True


def _run(options: argparse.Namespace, rank: int, port: int, results: Any) -> None:
    try:
        results.put((rank, Rank(options, rank, port).run()))
    except Exception as error:
        import traceback

        traceback.print_exc()
        results.put((rank, {"errors": [repr(error)]}))
        time.sleep(0.5)
        os._exit(1)
    time.sleep(1)  # the others may still be in a collective
    os._exit(0)


def _sidecar(directory: str, stop: threading.Event, totals: dict[str, Any]) -> None:
    """Let the sidecar's own source follow the directory while the engine runs."""
    from k3observe.exporters.collector import SourceStatus
    from k3observe.exporters.experts.plugin import PluginSource

    def sink(event: Any) -> None:
        kind = type(event).__name__
        if kind == "ExpertLoads":
            rows = totals.setdefault(event.scope, [[0] * len(event.counts[0]) for _ in event.counts])
            for row, counts in zip(rows, event.counts, strict=True):
                row[:] = map(sum, zip(row, counts, strict=True))
            totals["layers"] = list(event.layers)
            totals["fewest"] = min(totals.get("fewest", WORLD), event.ranks_seen)
            totals["events"] = totals.get("events", 0) + 1
        elif kind == "Rebalance":
            totals["rebalances"] = totals.get("rebalances", 0) + 1

    source, status = PluginSource(Path(directory), 0.001), SourceStatus("experts", "plugin")
    log = logging.getLogger("sidecar")
    while True:
        last = stop.is_set()
        source.look(sink, status, log)
        if last:
            break
        time.sleep(0.001)


BASE = {"mode": "sync", "log": 0, "fault": "", "steps": 150, "window": 20, "step_interval": 60, "start": "fork"}
SCENARIOS: dict[str, dict[str, Any]] = {
    "sync": {"start": "spawn"},
    "sync-logged": {"log": 5},
    "observe-only": {"log": 20, "step_interval": 1_000_000_000},
    "async": {"mode": "async"},
    "async-logged": {"mode": "async", "log": 20},
    "raising": {"fault": "raising"},
    "missing": {"fault": "missing"},
    "short-window": {"window": 10, "steps": 60},
}
EVERY = 10


def _scenario(options: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks of one scenario, with the sidecar's source beside them."""
    directory = Path(options.directory)
    if options.fault == "missing":
        directory.rmdir()
    totals: dict[str, Any] = {}
    stop = threading.Event()
    follower = threading.Thread(target=_sidecar, args=(options.directory, stop, totals))
    context: Any = get_context(options.start)
    results: Any = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [context.Process(target=_run, args=(options, rank, port, results)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    if options.plugin == "on" and not options.fault:
        follower.start()
    found: dict[int, Any] = {}
    deadline = time.monotonic() + 200
    while len(found) < WORLD and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            rank, result = results.get(timeout=1)
            found[rank] = result
            if "digest" not in result:
                break
    for process in ranks:
        process.join(3)
        if process.is_alive():
            process.terminate()
    stop.set()
    if follower.ident:
        follower.join()
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    return {"ranks": [found.get(rank) for rank in range(WORLD)], "sidecar": totals}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("plugin", choices=("none", "on"))
    parser.add_argument("scenarios", nargs="+", choices=tuple(SCENARIOS))
    options = parser.parse_args()
    os.makedirs(options.directory, exist_ok=True)
    os.environ["K3OBSERVE_EXPERTS_DIR"] = options.directory
    os.environ["K3OBSERVE_EXPERTS_STEPS"] = str(EVERY)
    os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    if options.plugin == "none":
        os.environ["VLLM_PLUGINS"] = "none"
    import vllm.logger
    from vllm.plugins import load_general_plugins

    lines: list[str] = []
    vllm.logger._configure_vllm_root_logger()
    logging.getLogger("vllm").addHandler(_Lines(lines))
    load_general_plugins()  # as the parser of an engine's arguments does, before its workers start
    imported = "vllm.distributed.eplb.eplb_state" in sys.modules
    importlib.import_module("vllm.distributed.eplb.eplb_state")  # workers are forked from here, patched
    for name in options.scenarios:
        settings = {**BASE, **SCENARIOS[name], "every": EVERY, "plugin": options.plugin,
                    "directory": options.directory}
        result = _scenario(argparse.Namespace(**settings))
        print("RESULT " + json.dumps(
            {"scenario": name, "imported_early": imported, "lines": lines, **result}), flush=True)


if __name__ == "__main__":
    main()
