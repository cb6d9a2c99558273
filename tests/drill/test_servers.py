from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3observe.drill import servers
from k3observe.drill.binaries import PROJECT
from k3observe.drill.replay import Manner, load, serve
from k3observe.drill.webhook import receive


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_an_alert_travels_from_prometheus_through_alertmanager_to_the_webhook(
    prometheus_bin: Path, alertmanager_bin: Path, tmp_path: Path
) -> None:
    with receive() as receiver:
        routing = tmp_path / "alertmanager.yml"
        hook = {"name": "scaler", "webhook_configs": [{"url": receiver.url("scale")}]}
        routing.write_text(json.dumps({"route": {"receiver": "scaler", "group_wait": "1s"}, "receivers": [hook]}))
        with servers.alertmanager(alertmanager_bin, routing, tmp_path) as alertmanager:
            rule = {"alert": "Always", "expr": "vector(1)", "labels": {"action": "scale_out"}}
            (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": [rule]}]}))
            config = tmp_path / "prometheus.yml"
            config.write_text(
                json.dumps(
                    {
                        "global": {"evaluation_interval": "1s"},
                        "rule_files": ["rules.yml"],
                        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager.address]}]}]},
                    }
                )
            )
            with servers.prometheus(prometheus_bin, config, tmp_path) as prometheus:
                notification = receiver.wait_for(lambda n: n.status == "firing", 30)
                pids = (prometheus.process.pid, alertmanager.process.pid)
                assert all(map(alive, pids))
    assert (notification.path, notification.names()) == ("/scale", {"Always"})
    assert notification.alerts[0]["labels"]["action"] == "scale_out"
    assert not any(map(alive, pids))


@pytest.mark.long
def test_victoria_metrics_scrapes_a_target_and_answers_at_once(victoria_metrics_bin: Path, tmp_path: Path) -> None:
    with serve(load(PROJECT / "k3observe/drill/engines/mindie.prom"), Manner("text")) as target:
        target.replay.set_gauge("npu_cache_usage_perc", 0.5)
        config = tmp_path / "scrape.yml"
        job = {"job_name": "mindie", "scrape_interval": "1s", "static_configs": [{"targets": [target.address]}]}
        config.write_text(json.dumps({"scrape_configs": [job]}))
        with servers.victoria_metrics(victoria_metrics_bin, tmp_path, config) as server:
            servers.wait_until(lambda: server.query("npu_cache_usage_perc")[0]["value"][1] == "0.5", "the gauge", 20)


def test_a_server_that_refuses_its_configuration_says_so_with_its_log(prometheus_bin: Path, tmp_path: Path) -> None:
    config = tmp_path / "p.yml"
    config.write_text("no_such_field: 1\n")
    with (
        pytest.raises(servers.ServerError, match=r"(?s)prometheus ended with status \d.*no_such_field"),
        servers.prometheus(prometheus_bin, config, tmp_path),
    ):
        pass


CHILD = """
import sys, time
from pathlib import Path
from k3observe.drill import servers
port = servers.free_port()
argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
with servers.run("files", argv, port, Path(sys.argv[1]), ready="/") as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_when_its_parent_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert alive(server)
        os.kill(parent.pid, number)
    deadline = time.monotonic() + 5
    while alive(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)
