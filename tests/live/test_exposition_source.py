"""Reading sources: formats, gzip, URLs, and what is cut short, hostile or no exposition at all."""

from __future__ import annotations

import gzip
import io
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from k3observe.live.exposition import Exposition, SourceError, parse
from k3observe.live.exposition_source import metrics_url, read
from tests.exporters.conftest import certify  # noqa: F401 - a fixture
from tests.exporters.exporter_process import Certificate

GOOD = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="k3"} 3.0\n'


def everything(name: str) -> bool:
    return True


def parsed(body: bytes) -> Exposition:
    return parse(iter([body]), "x", everything)


@contextmanager
def server(
    answers: dict[str, tuple[int, dict[str, str], bytes]], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answers.get(self.path, (404, {}, b"not here"))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join(timeout=5)


def test_a_file_standard_input_and_gzip_read_alike(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(GOOD)
    (tmp_path / "packed").write_bytes(gzip.compress(GOOD))
    found = [read(str(tmp_path / name), everything).samples for name in ("plain", "packed")]
    found.append(read("-", everything, io.BytesIO(GOOD)).samples)
    assert found[0] == found[1] == found[2]
    (sample,) = found[0]["vllm:num_requests_running"]
    assert (dict(sample.labels), sample.value) == ({"engine": "0", "model_name": "k3"}, 3.0)


def test_https_is_verified_against_the_given_authority(certify: Callable[[str], Certificate]) -> None:  # noqa: F811
    certificate = certify("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    with server({"/metrics": (200, {}, GOOD)}, context) as url:
        assert read(url, everything, ca_file=certificate.ca).samples["vllm:num_requests_running"]
        with pytest.raises(SourceError, match=r"certificate verify failed.*: name its authority with --ca-file"):
            read(url, everything)
        with pytest.raises(SourceError, match=r"--ca-file: .*/none: cannot be used: No such file"):
            read(url, everything, ca_file=certificate.ca.with_name("none"))


def test_urls_with_and_without_path_scheme_and_gzip_are_read() -> None:
    packed = gzip.compress(GOOD)
    answers = {"/metrics": (200, {}, GOOD), "/packed": (200, {"Content-Encoding": "gzip"}, packed)}
    with server(answers) as url:
        host = url.removeprefix("http://")
        for source in (url, url + "/metrics", host, host + "/metrics", url + "/packed"):
            assert read(source, everything).counts == {"vllm:num_requests_running": 1}, source


def test_openmetrics_of_the_client_library_is_the_text_format_by_other_names() -> None:
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "tokens", ["model_name"], registry=registry).labels('a"b\\c\nd').inc(5)
    Gauge("vllm:num_requests_running", "requests", registry=registry).set(2)
    found = parsed(openmetrics(registry))
    assert found.openmetrics
    assert found.types["vllm:prompt_tokens_total"] == "counter"
    (sample,) = found.samples["vllm:prompt_tokens_total"]
    assert sample.labels == {"model_name": 'a"b\\c\nd'}
    assert sample.value == 5.0


@pytest.mark.parametrize(
    ("line", "labels", "value", "timestamp"),
    [
        (b"a 1", {}, 1.0, None),
        (b'a{x="}"} +Inf 1700000000000', {"x": "}"}, float("inf"), 1_700_000_000.0),
        (b'{"a",x="1"} 2e3', {"x": "1"}, 2000.0, None),
        (b'a{ x = "1" , } 0x' + b"", None, None, None),
        (b'a{x="1",} 4 # {trace_id="k"} 1.0', {"x": "1"}, 4.0, None),
        (b'a{x="1"}5', {"x": "1"}, 5.0, None),
    ],
)  # fmt: skip
def test_the_grammar_of_a_line(
    line: bytes, labels: dict[str, str] | None, value: float | None, timestamp: float | None
) -> None:
    if labels is None:
        with pytest.raises(SourceError, match="is no sample"):
            parsed(line + b"\n")
        return
    (sample,) = parsed(line + b"\n").samples["a"]
    assert (dict(sample.labels), sample.value, sample.timestamp) == (labels, value, timestamp)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "x: has no metrics in it"),
        (b"# HELP a b\n", "x: has no metrics in it"),
        (GOOD + b'vllm:num_requests_waiting{engine="0",mod', "x:3: is cut short in the middle of a line"),
        (GOOD + b"nonsense here too much\n", "x:3: is no sample: nonsense here too much: Prometheus refuses"),
        (b"<!doctype html>\n<html>", "x:1: is a web page, not metrics"),
        (b"a 1\n# EOF\nb 2\n", "x:3: stands after # EOF"),
        (b"a\xff 1\n", "x:1: is not UTF-8"),
        (b"a" * (2 << 20), "x:1: has a line longer than 1 MiB"),
        (b'a{x="1",x="2"} 1\n', "x:1: is no sample"),
        (b"a\x1b[31m 1\n", "x:1: is no sample: a?[31m 1"),
    ],
)  # fmt: skip
def test_what_is_no_exposition_is_told_with_the_line(body: bytes, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        parsed(body)
    assert message in str(caught.value)


def test_a_capture_without_last_line_feed_is_read_and_noted() -> None:
    assert parsed(GOOD.rstrip()).notes
    assert not parsed(GOOD).notes


def test_cut_gzip_broken_gzip_and_a_bomb_are_refused(tmp_path: Path) -> None:
    packed = gzip.compress(GOOD * 1000)
    bomb = gzip.compress((b"a" * 1000 + b" 1\n") * 70_000)
    for name, body, message in (
        ("cut", packed[: len(packed) // 2], "cut short: the gzip data ends too early"),
        ("broken", packed[:10] + b"\xff" * 30, "broken gzip"),
        ("bomb", bomb, "larger than 64 MiB"),
    ):
        (tmp_path / name).write_bytes(body)
        with pytest.raises(SourceError, match=message):
            read(str(tmp_path / name), lambda _: False)


@pytest.mark.long
def test_30_megabytes_cost_little_more_than_what_is_asked_of_them(tmp_path: Path) -> None:
    path = tmp_path / "large"
    line = b'other_metric_bucket{pod="p-%06d",le="0.5",namespace="some-namespace"} 12345\n'
    with path.open("wb") as file:
        for number in range(400_000):
            file.write(line % number)
        file.write(GOOD)
    assert path.stat().st_size > 28 << 20
    code = """
import resource, sys
from k3observe.live.exposition_source import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read(sys.argv[1], lambda name: name.startswith("vllm:"))
print(sum(found.counts.values()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    series, kilobytes = map(int, run.stdout.split())
    assert series == 400_001
    assert kilobytes < 8 << 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nowhere/file", "/nowhere/file: cannot be read: No such file or directory: give a file, a URL or -"),
        ("/", "/: cannot be read: Is a directory"),
        ("ftp://host/metrics", "ftp://host/metrics: is no URL: write it like http://host:8000/metrics"),
        ("http://host:99999", "is no URL"),
        ("http://127.0.0.1:1/metrics", "cannot be reached: Connection refused: is the address right?"),
    ],
)
def test_what_cannot_be_read_is_told(source: str, message: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(source, everything)
    assert message in str(caught.value)


def test_refusals_and_web_pages_of_a_server_are_told() -> None:
    answers = {
        "/page": (200, {"Content-Type": "text/html"}, b"<html>"),
        "/broken": (500, {}, b""),
        "/short": (200, {"Content-Length": "1000"}, GOOD),
    }
    with server(answers) as url:
        for path, message in (("/metrics", "answered 404"), ("/page", "is a web page"), ("/broken", "answered 500"),
                              ("/short", "broke off")):  # fmt: skip
            with pytest.raises(SourceError, match=message):
                read(url + path, everything)


def test_a_url_without_path_means_metrics() -> None:
    assert metrics_url("host:8000") == "http://host:8000/metrics"
    assert metrics_url("https://host/own/path?x=1") == "https://host/own/path?x=1"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_no_body_whatever_makes_anything_but_an_answer_or_a_message(body: bytes) -> None:
    with suppress(SourceError):
        assert parsed(body).counts


@pytest.mark.parametrize("line", [b"a{" + b'x="1",' * 20_000, b"a" * 200_000 + b"!", b'a{x="' + b"\\" * 100_000,
                                  b"a{" + b'"' * 100_001 + b" 1", b"a" + b" " * 200_000 + b"x y z"])  # fmt: skip
def test_hostile_lines_cost_no_time(line: bytes) -> None:
    with pytest.raises(SourceError):
        parsed(line + b"\n")
