from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.exposition import choose_encoder

from k3observe.drill import replay as replay_module
from k3observe.drill import servers
from k3observe.drill.binaries import PROJECT, Release
from k3observe.drill.replay import Manner, load, negotiate, serve

ENGINES = PROJECT / "k3observe" / "drill" / "engines"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "text/plain", "text/html", PROMETHEUS_2, PROMETHEUS_3, "application/openmetrics-text",
     "application/openmetrics-text; version=0.0.1", "text/plain;version=1.0.0;escaping=allow-utf-8",
     "text/plain;version=1.0.0;escaping=underscores", "text/plain;version=0.0.4"],
)  # fmt: skip
def test_formats_are_negotiated_as_the_client_library_does(accept: str) -> None:
    assert negotiate(accept)[2] == choose_encoder(accept)[1]


def scrape(url: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode(), answer.headers.get("Content-Type")


def post(address: str, document: object) -> str:
    request = urllib.request.Request(f"http://{address}/drill", data=json.dumps(document).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode()


def test_a_target_spells_names_as_it_is_asked_or_as_it_is_told() -> None:
    capture = ENGINES / "vllm-0.33.prom"
    with serve(load(capture)) as asked, serve(load(capture), Manner("text", "colon")) as told:
        assert "\nvllm_kv_cache_usage_perc{" in scrape(asked.url, PROMETHEUS_2)[0]
        assert "\nvllm:kv_cache_usage_perc{" in scrape(asked.url, PROMETHEUS_3)[0]
        assert scrape(asked.url, PROMETHEUS_3)[0].endswith("# EOF\n")
        body, content_type = scrape(told.url, PROMETHEUS_2)
        assert "\nvllm:kv_cache_usage_perc{" in body
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_faults_come_and_go_while_the_target_can_still_be_steered() -> None:
    with serve(load(ENGINES / "mindie.prom")) as target:
        post(target.address, {"fault": "error"})
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(target.url)
        post(target.address, {"fault": "gone"})
        with pytest.raises(OSError, match="without response"):
            scrape(target.url)
        post(target.address, {"fault": "hang"})
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(target.url, timeout=0.3)
        post(target.address, {"fault": None})
        assert "npu_cache_usage_perc" in scrape(target.url)[0]


def test_posted_documents_move_the_values() -> None:
    with serve(load(ENGINES / "vllm-0.33.prom")) as target:
        post(target.address, {"gauge": "vllm:kv_cache_usage_perc", "value": 0.97, "labels": {"engine": "0"}})
        post(target.address, {"counter": "vllm:prompt_tokens_total", "per_second": 1e6})
        post(target.address, {"histogram": "vllm:request_queue_time_seconds", "per_second": {"12": 1e6}})
        body = scrape(target.url, PROMETHEUS_3)[0]
        lines = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
        assert lines['vllm:kv_cache_usage_perc{engine="0",model_name="kimi-k3"}'] == "0.97"
        assert float(lines['vllm:prompt_tokens_total{engine="0",model_name="kimi-k3"}']) > 0
        assert float(lines['vllm:request_queue_time_seconds_bucket{engine="0",le="10.0",model_name="kimi-k3"}']) == 0
        post(target.address, {"all": 0})
        post(target.address, {"restart": True})
        body = scrape(target.url, PROMETHEUS_3)[0]
        assert 'vllm:prompt_tokens_total{engine="0",model_name="kimi-k3"} 0.0' in body


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"gauge": "vllm:nothing", "value": 1}, "has no gauge or untyped vllm:nothing"),
        ({"fault": "flood"}, "nothing to do in"),
        ({"counter": "vllm:prompt_tokens_total", "per_second": -1}, "a counter never falls"),
        ([], "not a JSON object"),
    ],
)
def test_a_document_that_cannot_be_done_is_answered_with_the_reason(document: object, message: str) -> None:
    with serve(load(ENGINES / "vllm-0.33.prom")) as target:
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(target.address, document)
        assert refused.value.code == 400
        assert message in refused.value.read().decode()


def test_as_a_process_it_prints_its_address_and_ends_at_a_signal() -> None:
    command = [sys.executable, "-m", "k3observe.drill.replay", "--file", str(ENGINES / "mindie.prom"), "--rate", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert "# TYPE npu_cache_usage_perc gauge" in scrape(url)[0]
        finally:
            process.terminate()
        assert process.wait(5) == 0


def test_a_bad_file_ends_it_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.prom"
    bad.write_text("<html>")
    assert replay_module.main(["--file", str(bad)]) == 2
    assert capsys.readouterr().err == f"replay: {bad}:1: not a sample `name{{label=\"value\"}} number`: <html>\n"


@pytest.fixture
def scraping(prometheus_bin: Path, tmp_path: Path) -> Iterator[tuple[servers.Server, dict[str, replay_module.Target]]]:
    capture = ENGINES / "vllm-0.33.prom"
    with (
        serve(load(capture)) as asked,
        serve(load(capture), Manner("text", "colon")) as colon,
        serve(load(capture), Manner("text", "underscore")) as underscore,
        serve(load(capture), Manner("text", content_type="")) as untyped,
    ):
        targets = {"asked": asked, "colon": colon, "underscore": underscore, "untyped": untyped}
        jobs = [{"job_name": job, "static_configs": [{"targets": [t.address]}]} for job, t in targets.items()]
        config = tmp_path / "prometheus.yml"
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        for target in targets.values():
            target.replay.set_gauge("vllm:num_requests_waiting", 7.0)
            target.replay.set_rate("vllm:prompt_tokens_total", 100.0)
        with servers.prometheus(prometheus_bin, config, tmp_path / "run") as server:
            yield server, targets


@pytest.mark.long
def test_a_real_prometheus_scrapes_every_spelling_and_sees_faults_rates_and_restarts(
    scraping: tuple[servers.Server, dict[str, replay_module.Target]], toolset: Release
) -> None:
    server, targets = scraping

    def names(job: str) -> set[str]:
        found = server.query(f'{{__name__=~"vllm[:_]num_requests_waiting",job="{job}"}} == 7')
        return {series["metric"]["__name__"] for series in found}

    def value(expression: str) -> float:
        return float(server.query(expression)[0]["value"][1])

    servers.wait_until(lambda: value("count(up)") == 4 and names("asked"), "first scrapes", 15)
    servers.wait_until(lambda: names("underscore") and names("colon"), "all spellings", 15)
    colon = {"vllm:num_requests_waiting"}
    assert names("asked") == (colon if toolset == "3.5" else {"vllm_num_requests_waiting"})
    assert names("colon") == colon
    assert names("underscore") == {"vllm_num_requests_waiting"}
    assert value('up{job="untyped"}') == (0 if toolset == "3.5" else 1)

    rate = 'rate(vllm:prompt_tokens_total{job="colon"}[5s])'
    servers.wait_until(lambda: 95 < value(rate) < 105, "a rate of 100/s", 15)
    targets["colon"].replay.restart()
    servers.wait_until(lambda: value('resets(vllm:prompt_tokens_total{job="colon"}[30s])') == 1, "a reset", 15)
    targets["colon"].inject("gone")
    targets["asked"].inject("hang")
    targets["underscore"].inject("error")
    servers.wait_until(lambda: value("sum(up)") == (0 if toolset == "3.5" else 1), "all down", 15)


def test_a_port_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert replay_module.main(["--file", str(ENGINES / "mindie.prom"), "--port", str(port)]) == 2
    assert "Address already in use" in capsys.readouterr().err
