from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.exporters.exporter_process import PROGRAM, Certificate, Engine, Exporter, wait_until

Run = Callable[..., Exporter]
RunEngine = Callable[..., Engine]


def body(usage: float, queries: int, hits: int) -> bytes:
    labels = '{engine="0",model_name="m"}'
    return (f"vllm:kv_cache_usage_perc{labels} {usage}\nvllm:prefix_cache_queries_total{labels} {queries}\n"
            f"vllm:prefix_cache_hits_total{labels} {hits}\n").encode()


def flags(engine: Engine, *more: str) -> tuple[str, ...]:
    return ("--collect=kv-cache", f"--kv-cache.url={engine.url}", "--kv-cache.interval=0.2",
            "--kv-cache.timeout=0.5", *more)


def test_a_restart_a_fall_and_a_return_of_the_engine_are_followed(run_exporter: Run, run_engine: RunEngine) -> None:
    engine = run_engine(body(0.5, 100, 60))
    exporter = run_exporter(*flags(engine))
    usage, queries = "k3_kv_cache_usage_ratio{", "k3_kv_cache_queries_total{"
    wait_until(lambda: exporter.metric(usage) == 0.5)
    assert exporter.metric(queries) == 100
    assert exporter.metric('k3_kv_cache_hits_total{engine="0",model_name="m",tier="device"}') == 60
    assert exporter.metric("k3_source_up{") == 1
    engine.body = body(0.1, 7, 3)
    wait_until(lambda: exporter.metric(queries) == 107)
    engine.serve = lambda sock: engine.answer(sock, "503 Service Unavailable")
    wait_until(lambda: exporter.metric("k3_source_up{") == 0)
    assert exporter.metric(usage) is None
    assert exporter.metric(queries) is None
    assert (exporter.metric('k3_source_errors_total{collector="kv-cache",reason="status"') or 0) >= 1
    exporter.wait_for_log("cannot be read: status 503: check")
    engine.serve = engine.answer
    wait_until(lambda: exporter.metric(queries) == 107)
    exporter.wait_for_log("the engine is read again")
    engine.body = b"process_start_time_seconds 1\n"
    wait_until(lambda: exporter.metric(usage) is None)
    assert exporter.metric("k3_source_up{") == 1
    exporter.wait_for_log("nothing of a KV cache that is known")


def test_an_engine_that_hangs_delays_no_scrape_and_no_end(run_exporter: Run, run_engine: RunEngine) -> None:
    engine = run_engine()

    def hang(sock: socket.socket) -> None:
        time.sleep(30)

    engine.serve = hang
    exporter = run_exporter(*flags(engine, "--kv-cache.timeout=30"))
    assert exporter.get("/-/ready")[0] == 503
    start = time.monotonic()
    assert exporter.get("/metrics")[0] == 200
    exporter.process.terminate()
    assert exporter.process.wait(5) == 0
    assert time.monotonic() - start < 2


def test_an_https_engine_is_read_with_its_own_authority(
    run_exporter: Run, run_engine: RunEngine, certify: Callable[[str], Certificate]
) -> None:
    files = certify("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    engine = run_engine(body(0.25, 1, 1), context)
    exporter = run_exporter(*flags(engine, f"--kv-cache.ca-file={files.ca}"))
    wait_until(lambda: exporter.metric("k3_kv_cache_usage_ratio{") == 0.25)
    unverified = run_exporter(*flags(engine, "--kv-cache.insecure-skip-verify"))
    wait_until(lambda: unverified.metric("k3_kv_cache_usage_ratio{") == 0.25)
    strict = run_exporter(*flags(engine))
    wait_until(lambda: strict.metric('k3_source_errors_total{collector="kv-cache",reason="tls"'))
    assert strict.metric("k3_kv_cache_usage_ratio{") is None


def test_once_reads_a_real_exposition_and_promtool_accepts_the_result(
    shared: Path, run_engine: RunEngine, promtool: Path
) -> None:
    engine = run_engine((shared / "samples/engines/vllm-0.8.5.prom").read_bytes())
    done = subprocess.run((*PROGRAM, *flags(engine), "--once"), capture_output=True, text=True, check=True, timeout=20)
    assert 'k3_kv_cache_queries_total{engine="0",model_name="moonshotai/Kimi-K3"} 8.63676416e+08' in done.stdout
    check = subprocess.run((promtool, "check", "metrics"), input=done.stdout, text=True, capture_output=True,
                           check=False)
    assert (check.returncode, check.stderr) == (0, "")


def test_flags_that_cannot_be_used_are_named() -> None:
    for flag, message in (
        ("--kv-cache.url=127.0.0.1:8000", "--kv-cache.url: '127.0.0.1:8000' is no http:// or https:// URL"),
        ("--kv-cache.interval=0", "--kv-cache.interval: 0 is not between 0.1s and 60s"),
        ("--kv-cache.interval=often", "--kv-cache.interval: 'often' is no duration such as 30s or 5m"),
    ):
        done = subprocess.run((*PROGRAM, "--collect=kv-cache", flag), capture_output=True, text=True, check=False,
                              timeout=20)
        assert (done.returncode, done.stderr) == (2, f"k3observe-exporter: {message}\n")
    done = subprocess.run(
        (*PROGRAM, "--collect=kv-cache", "--kv-cache.url=https://127.0.0.1:1", "--kv-cache.ca-file=/nonexistent"),
        capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, "certificate authority /nonexistent: cannot be used" in done.stderr) == (2, True)
