from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from k3observe.exporters import families
from k3observe.exporters.collector import SourceStatus
from k3observe.exporters.experts.collector import ExpertsCollector, add_flags, from_args
from k3observe.exporters.experts.loads import BalanceReading, Event, ExpertLoads, Phase, Rebalance, Scope
from k3observe.exporters.experts.report import Options
from k3observe.exporters.experts.source import Sink

LOG = logging.getLogger("test")
NOW = 1_000_000.0
VLLM = (
    "(Worker_DP0_TP0_EP0 pid=1) INFO EPLB step: {step} for model moonshotai/Kimi-K3: avg_tokens={average:.2f}, "
    "max_tokens={largest}, balancedness={balance:.4f}, steps until the next rearrangement: 750\n")


def line(balance: float, average: float = 92_000.0) -> str:
    return VLLM.format(step=1, average=average, largest=round(average / balance), balance=balance)


class Told:
    """A source that hands over what it was given when it is started."""

    name = "log"
    reasons = ("unreadable", "long_line", "eplb_crashed")

    def __init__(self, *events: Event) -> None:
        self.events = events

    def start(self, sink: Sink, status: SourceStatus, log: logging.Logger) -> None:
        for event in self.events:
            sink(event)
        status.succeeded(0.1)

    def stop(self) -> None:
        """End nothing."""


def samples(*events: Event, **options: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Return label values (in the order of the family) and value of each series."""
    collector = ExpertsCollector(
        Told(*events), None, LOG, instance="me", window_seconds=300, options=Options(**{"min_load": 0, **options}),
        clock=lambda: NOW)
    collector.start()
    return {
        sample.name: found
        for metric in collector.collect()
        for sample in metric.samples
        for found in [{tuple(s.labels.values()): s.value for s in metric.samples if s.name == sample.name}]}


def loads(counts: list[list[int]], scope: Scope = "rank", phase: Phase = "all", **others: Any) -> ExpertLoads:
    return ExpertLoads("K3", scope, tuple(map(tuple, counts)), 10.0, NOW, phase, **others)


ALL = ("K3", "all", "rank", "mean_of_layers")


def test_counts_give_balance_variance_worst_layer_and_load_of_ranks() -> None:
    found = samples(loads([[300, 100], [100, 100], [0, 0]], ranks_seen=2, ranks_expected=4))
    assert found["k3_expert_balance_ratio"][ALL] == pytest.approx((2 / 3 + 1) / 2)
    assert found["k3_expert_balance_worst_ratio"][ALL] == pytest.approx(2 / 3)
    assert found["k3_expert_load_variance"][ALL] == pytest.approx(0.125)
    assert found["k3_expert_load_variance_worst"][ALL] == pytest.approx(0.25)
    assert found["k3_expert_rank_load_ratio"] == {("K3", "0"): 1.25, ("K3", "1"): 0.75}
    assert found["k3_expert_window_tokens"] == {("K3", "all"): 300}
    assert found["k3_expert_ranks_seen"] == {("K3",): 2}
    assert found["k3_expert_ranks_expected"] == {("K3",): 4}
    assert "k3_expert_load_variance_lower_bound" not in found
    assert "k3_expert_layer_balance_ratio" not in found
    assert "k3_expert_hottest_load_ratio" not in found


def test_few_tokens_are_shown_and_give_no_balance() -> None:
    found = samples(loads([[3, 1]]), min_load=100)
    assert found["k3_expert_window_tokens"] == {("K3", "all"): 4}
    assert "k3_expert_balance_ratio" not in found
    assert "k3_expert_rank_load_ratio" not in found


def test_no_traffic_gives_no_value() -> None:
    found = {name for name in samples(loads([[0, 0]])) if name.startswith("k3_expert")}
    assert found == {"k3_expert_ranks_seen", "k3_expert_rebalances_total"}


def test_a_source_of_mean_and_maximum_gives_a_lower_bound_only_with_known_ranks() -> None:
    reading = BalanceReading("K3", "ratio_of_sums", 0.5, NOW, ranks=11)
    found = samples(reading)
    labels = ("K3", "all", "rank", "ratio_of_sums")
    assert found["k3_expert_load_variance_lower_bound"] == {labels: pytest.approx(0.1)}
    assert found["k3_expert_balance_ratio"] == {labels: 0.5}
    assert "k3_expert_load_variance" not in found
    assert "k3_expert_load_variance_lower_bound" not in samples(BalanceReading("K3", "ratio_of_sums", 0.5, NOW))


def test_formulas_are_never_mixed_in_one_series() -> None:
    found = samples(
        BalanceReading("K3", "ratio_of_sums", 0.5, NOW), BalanceReading("K3", "reciprocal_of_mean", 0.7, NOW),
        BalanceReading("K3", "mean_of_layers", 0.1, NOW), loads([[100, 100]]))
    assert {labels[3]: value for labels, value in found["k3_expert_balance_ratio"].items()} == {
        "ratio_of_sums": 0.5, "reciprocal_of_mean": 0.7, "mean_of_layers": 1}


def test_phases_have_a_balance_each_and_add_up_to_all() -> None:
    found = samples(loads([[300, 100]], phase="prefill"), loads([[100, 100]], phase="decode"))
    assert {labels[1]: value for labels, value in found["k3_expert_balance_ratio"].items()} == {
        "prefill": pytest.approx(2 / 3), "decode": 1, "all": 0.75}
    assert {labels[1] for labels in found["k3_expert_load_variance"]} == {"all"}


def test_layers_and_hottest_experts_come_when_asked_for() -> None:
    events = loads([[300, 100], [0, 0]], layers=(3, 4)), loads([[6, 0, 1, 1], [0, 0, 0, 0]], "expert", layers=(3, 4))
    found = samples(*events, layers=True, top=2)
    assert found["k3_expert_layer_balance_ratio"] == {("K3", "3"): pytest.approx(2 / 3)}
    assert found["k3_expert_hottest_load_ratio"] == {("K3", "3", "0", "1"): 3.0, ("K3", "3", "2", "2"): 0.5}
    assert found["k3_experts_dead"] == {("K3",): 1}


def test_rearrangements_start_at_0_and_keep_their_last_duration() -> None:
    reading = BalanceReading("K3", "ratio_of_sums", 0.5, NOW)
    assert samples(reading)["k3_expert_rebalances_total"] == {("K3",): 0}
    found = samples(reading, Rebalance("K3", NOW, 2.5), Rebalance("K3", NOW))
    assert found["k3_expert_rebalances_total"] == {("K3",): 2}
    assert found["k3_expert_rebalance_seconds"] == {("K3",): 2.5}


def test_there_are_at_most_30_series_and_one_more_a_rank() -> None:
    phases, scopes = get_args(Phase), get_args(Scope)
    ranks, layers = 64, 3
    events: list[Event] = [
        loads([[5] * (ranks if scope == "rank" else 896)] * layers, scope, phase, ranks_seen=64, ranks_expected=64)
        for phase, scope in product(phases, scopes)]
    found = samples(*events, Rebalance("K3", NOW, 1.0))
    peers = 3 + 2  # up, last success, duration and two reasons
    assert sum(map(len, found.values())) + peers <= 30 + ranks
    readings = [BalanceReading("K3", "ratio_of_sums", 0.5, NOW, phase, 0.4, 1, 9, 9, 64) for phase in phases]
    assert sum(map(len, samples(*readings, Rebalance("K3", NOW, 1.0)).values())) + peers <= 30


def test_every_family_has_the_labels_it_declares() -> None:
    declared = {family.name: family.labels for family in families.ALL}
    collector = ExpertsCollector(
        Told(loads([[5, 5]]), loads([[5, 5]], "expert"), Rebalance("K3", NOW, 1.0)), None, LOG, instance="me",
        window_seconds=300, options=Options(0, True, 3, 2), places={0: ("0", "GPU-1")}, clock=lambda: NOW)
    collector.start()
    for metric in collector.collect():
        for sample in metric.samples:
            assert tuple(sample.labels) == declared[sample.name]


def test_models_beyond_four_are_refused_so_that_a_log_cannot_make_series_without_end(
    caplog: pytest.LogCaptureFixture
) -> None:
    found = samples(*[BalanceReading(f"model-{index}", "ratio_of_sums", 0.5, NOW) for index in range(9)])
    assert len(found["k3_expert_balance_ratio"]) == 4
    assert "more than 4 models" in caplog.text


def flags(*words: str) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    add_flags(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("words", "message"), [
    ([], "--experts.source: choose one of log"),
    (["--experts.source=log"], "--experts.log-file: is needed for --experts.source log"),
    (["--experts.source=log", "--experts.log-file=x", "--experts.file=y"],
     "--experts.file: is read only by --experts.source file"),
    (["--experts.source=file", "--experts.file=x", "--experts.window-only", "--experts.peer=http://n:1"],
     "--experts.window-only"),
])
def test_flags_that_do_not_fit_together_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_args(flags(*words), LOG)


@pytest.mark.parametrize("word", [
    "--experts.window=soon", "--experts.window=0s", "--experts.peer=node", "--experts.engine-version=new",
    "--experts.rank-device=0", "--experts.ranks=0", "--experts.metrics-url=file:///etc/passwd",
])
def test_values_that_mean_nothing_are_refused(word: str) -> None:
    with pytest.raises(Exception, match="argument"):
        flags(word)


def test_the_log_source_serves_balance_gates_few_tokens_and_counts_a_crash(
    sidecar: Callable[..., Any], tmp_path: Path
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(line(0.1))
    one = sidecar("--experts.source=log", f"--experts.log-file={log}", "--experts.engine-version=0.33.0",
                  "--experts.ranks=16", "--experts.rank-device=3=1/GPU-3")
    one.expect("k3_source_up", 1)
    one.expect("k3_source_errors_total", 0, reason="eplb_crashed")
    with log.open("a") as file:
        file.write(line(0.8) + line(0.6) + line(0.2, average=500) + "x" * 10_000_000 + "\n\xff\n")
        file.write("[eplb/worker] Subprocess crashed, EPLB optimization will stop. error=division by zero\n")
    one.expect("k3_source_errors_total", 1, reason="eplb_crashed")
    one.expect("k3_source_errors_total", 1, reason="long_line")
    labels = {"model_name": "moonshotai/Kimi-K3", "phase": "all", "scope": "rank", "formula": "ratio_of_sums"}
    one.expect("k3_expert_balance_ratio", 0.7, **labels)
    one.expect("k3_expert_load_variance_lower_bound", (1 / 0.7 - 1) ** 2 / 15, **labels)
    one.expect("k3_expert_window_tokens", (2 * 92_000 + 500) / 92 * 16)
    one.expect("k3_expert_rank_info", 1, rank="3", device="1", uuid="GPU-3", model_name="moonshotai/Kimi-K3")
    one.expect("k3_source_up", 1)
    os.rename(log, f"{log}.1")
    log.write_text(line(0.1) * 2)
    one.expect("k3_expert_balance_ratio", (0.8 + 0.6 + 0.1 + 0.1) / 4, **labels)


def test_an_old_vllm_gives_no_balance_and_says_so_once(sidecar: Callable[..., Any], tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(line(0.9) * 50)
    one = sidecar("--experts.source=log", f"--experts.log-file={log}", "--experts.engine-version=0.27.1",
                  "--experts.log-from-start")
    one.expect("k3_source_up", 1)
    time.sleep(0.3)
    assert one.value("k3_expert_balance_ratio") is None
    assert one.log.read_text().count("no balance is exported") == 1


def test_a_missing_log_is_down_until_it_appears(sidecar: Callable[..., Any], tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    one = sidecar("--experts.source=log", f"--experts.log-file={log}", "--experts.engine-version=0.28.0")
    one.expect("k3_source_up", 0)
    one.expect("k3_source_errors_total", 1, reason="unreadable")
    log.write_text(line(0.5))
    one.expect("k3_expert_balance_ratio", 0.5)
    one.expect("k3_source_up", 1)


def test_a_log_comes_through_standard_input(sidecar: Callable[..., Any]) -> None:
    reading, writing = os.pipe()
    one = sidecar("--experts.source=log", "--experts.log-file=-", "--experts.engine-version=0.28.0", stdin=reading)
    os.close(reading)
    os.write(writing, line(0.5).encode())
    one.expect("k3_expert_balance_ratio", 0.5)
    one.expect("k3_source_up", 1)
    os.close(writing)
    one.expect("k3_source_up", 0)


def test_a_file_of_counts_is_read_again_and_a_broken_one_keeps_the_window(
    sidecar: Callable[..., Any], counts_file: Callable[..., Path]
) -> None:
    path = counts_file("counts.json", [[3000, 1000]])
    one = sidecar("--experts.source=file", f"--experts.file={path}")
    one.expect("k3_expert_balance_ratio", 2 / 3)
    counts_file("counts.json", [[1000, 3000]])
    one.expect("k3_expert_balance_ratio", 1)
    path.write_text("{")
    one.expect("k3_source_up", 0)
    one.expect("k3_expert_balance_ratio", 1)
    assert one.value("k3_source_errors_total", reason="invalid")
    assert "counts.json: not JSON" in one.log.read_text()


@pytest.fixture
def page() -> Iterator[tuple[str, list[bytes]]]:
    """A page on loopback: its URL, and the bodies it answers with, the last one for ever."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.pop(0) if len(bodies) > 1 else bodies[0]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics", bodies
    server.shutdown()
    server.server_close()


def test_the_metrics_source_serves_what_sglangs_heat_map_tells(
    sidecar: Callable[..., Any], page: tuple[str, list[bytes]]
) -> None:
    def scrape(*loads: int) -> bytes:
        lines = [
            f'sglang:eplb_gpu_physical_count_bucket{{layer="0",le="{rank}.0"}} {sum(loads[: rank + 1])}'
            for rank in range(len(loads))]
        return "\n".join([*lines, 'sglang:num_running_reqs{model_name="K3"} 3', ""]).encode()

    url, bodies = page
    bodies += [scrape(5, 5), scrape(3005, 1005)]
    one = sidecar("--experts.source=metrics", f"--experts.metrics-url={url}")
    one.expect("k3_expert_balance_ratio", 2 / 3, model_name="K3", scope="rank", formula="mean_of_layers")
    one.expect("k3_expert_load_variance", 0.25)
    one.expect("k3_expert_ranks_seen", 2)
    bodies[:] = [b"<html>"]
    one.expect("k3_source_up", 0)


def test_the_http_source_reads_experts_and_places_them_on_ranks(
    sidecar: Callable[..., Any], page: tuple[str, list[bytes]]
) -> None:
    url, bodies = page
    bodies.append(json.dumps({
        "version": 1, "kind": "window", "time": time.time(), "scope": "expert", "ranks": 2,
        "counts": [[3000, 1000, 0, 4000]]}).encode())
    one = sidecar("--experts.source=http", f"--experts.http-url={url}", "--experts.model-name=K3", "--experts.top=1")
    one.expect("k3_expert_balance_ratio", 1, model_name="K3", scope="rank")
    one.expect("k3_expert_balance_ratio", 0.5, model_name="K3", scope="expert")
    one.expect("k3_expert_hottest_load_ratio", 2, layer="0", expert="3", position="1")
    one.expect("k3_experts_dead", 1)
    one.expect("k3_expert_ranks_expected", 2)


def test_bad_flags_end_the_program_with_2_and_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "k3observe.exporters.main", "--collect=experts", "--experts.source=log"],
        capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr == "k3observe-exporter: --experts.log-file: is needed for --experts.source log\n"


def test_rearrangements_are_kept_of_the_four_models_named_last() -> None:
    events = [Rebalance(f"model-{index}", NOW, 1.0) for index in range(9)]
    found = samples(*events, Rebalance("model-5", NOW), Rebalance("new", NOW))
    assert found["k3_expert_rebalances_total"] == {
        ("model-7",): 1, ("model-8",): 1, ("model-5",): 2, ("new",): 1}
    assert set(found["k3_expert_rebalance_seconds"]) == {("model-7",), ("model-8",), ("model-5",)}


def test_a_peer_that_lies_adds_no_more_than_three_models() -> None:
    class Liar:
        reasons = ()

        def windows(self) -> list[tuple[ExpertLoads, ...]]:
            return [tuple(replace(loads([[1, 2]]), model=f"m{index}") for index in range(16))]

    collector = ExpertsCollector(
        Told(loads([[1, 2]])), Liar(), LOG,  # type: ignore[arg-type]
        instance="me", window_seconds=300, options=Options(0), clock=lambda: NOW)
    collector._source.start(collector._take, collector._source_status, LOG)  # type: ignore[union-attr, arg-type]
    models = {sample.labels["model_name"] for metric in collector.collect() for sample in metric.samples
              if "model_name" in sample.labels}
    assert models == {"K3", "m0", "m1", "m2"}
