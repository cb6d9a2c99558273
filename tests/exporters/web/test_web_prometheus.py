from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import bcrypt

from tests.exporters.exporter_process import Certificate, Engine, Exporter, wait_until


def test_a_real_prometheus_scrapes_it_through_tls_and_basic_auth(
    prometheus_bin: Path, run_exporter: Callable[..., Exporter], run_engine: Callable[..., Engine],
    certify: Callable[[str], Certificate], tmp_path: Path,
) -> None:
    files, client = certify("127.0.0.1"), certify("prometheus")
    secret = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    web = tmp_path / "web.yml"
    web.write_text(
        f"tls_server_config:\n  cert_file: {files.cert}\n  key_file: {files.key}\n  client_ca_file: {files.ca}\n"
        f"  client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  prometheus: {secret}\n")
    engine = run_engine(b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n')
    exporter = run_exporter("--collect=kv-cache", f"--kv-cache.url={engine.url}", f"--web.config.file={web}")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n- job_name: k3-sidecar\n  scheme: https\n"
        f"  tls_config: {{ca_file: {files.ca}, cert_file: {client.cert}, key_file: {client.key}}}\n"
        "  basic_auth: {username: prometheus, password: secret}\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{exporter.port}']}}]\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        (prometheus_bin, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}"), stderr=subprocess.DEVNULL)
    try:
        def value(query: str) -> str | None:
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(url, timeout=5) as response:
                    result = json.load(response)["data"]["result"]
            except (urllib.error.URLError, ConnectionError):
                return None
            return str(result[0]["value"][1]) if result else None

        wait_until(lambda: value("up") == "1" and value("k3_kv_cache_usage_ratio") == "0.5", 30)
        assert value("k3_source_up") == "1"
    finally:
        process.terminate()
        process.wait(10)
