"""Two real servers with the sharded configuration scrape each target once."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from k3observe.drill.advance import Replay
from k3observe.drill.exposition import parse
from k3observe.drill.replay import Target, serve
from k3observe.drill.servers import Server, prometheus, wait_until
from tests.kubernetes.conftest import write
from tests.scale.stack import plan_of, render_all

EXPOSITION = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="k3",engine="0"} 1\n'


class Counted(Replay):
    """A target that counts its scrapes."""

    scrapes = 0

    def families(self):  # type: ignore[no-untyped-def]
        self.scrapes += 1
        return super().families()


@pytest.mark.long
@pytest.mark.parametrize("toolset", ["3.5", "2.42"], indirect=True)
def test_each_target_is_scraped_by_exactly_one_shard(prometheus_bin: Path, tmp_path: Path, toolset: str) -> None:
    with ExitStack() as running:
        replays = [Counted(parse(EXPOSITION)) for _ in range(12)]
        targets: list[Target] = [running.enter_context(serve(replay)) for replay in replays]
        config = {
            "version": 1, "stack": "k3",
            "prometheus": {"version": toolset, "scrape_interval": "1s", "evaluation_interval": "1s", "shards": 2,
                           "remote_write": [{"url": "http://127.0.0.1:9/api/v1/write"}]},
            "services": [
                {"name": "a", "engine": {"name": "vllm", "version": "0.33"},
                 "targets": [target.address for target in targets[:8]]},
                {"name": "b", "engine": {"name": "vllm", "version": "0.33"},
                 "targets": [target.address for target in targets[8:]]},
            ],
        }  # fmt: skip
        write(render_all(plan_of(config, tmp_path)), tmp_path)
        shards: list[Server] = [
            running.enter_context(prometheus(
                prometheus_bin, tmp_path / "prometheus" / f"prometheus-{shard}.yml", tmp_path / f"data-{shard}",
                arguments=["--storage.remote.flush-deadline=1s"]))
            for shard in range(2)
        ]  # fmt: skip

        def scraped() -> Counter[str]:
            return Counter(
                row["metric"]["instance"] for server in shards for row in server.query('up{job="k3-engine"} == 1'))

        wait_until(lambda: len(scraped()) == 12, "all targets", 30)
        assert scraped() == Counter(target.address for target in targets)
        assert all(len(server.query("up")) > 0 for server in shards), "both have work"
        before, began = [replay.scrapes for replay in replays], time.monotonic()
        wait_until(lambda: replays[0].scrapes >= before[0] + 4, "scrapes", 30)
        most = time.monotonic() - began + 2
        for replay, was in zip(replays, before, strict=True):
            assert replay.scrapes - was <= most, "one scrape a second"


def test_shards_leave_rules_to_the_ruler_behind_remote_write(tmp_path: Path) -> None:
    config = {
        "version": 1, "stack": "k3",
        "prometheus": {"shards": 3, "remote_write": [{
            "url": "https://mimir.example.com/api/v1/push", "headers": {"X-Scope-OrgID": "k3"},
            "bearer_token_file": "/etc/prometheus/secrets/mimir", "tls_ca_file": "/etc/prometheus/ca.crt",
            "queue": {"max_shards": 50, "capacity": 10000, "max_samples_per_send": 2000, "batch_send_deadline": "5s",
                      "max_backoff": "10s"}}]},
        "services": [{"name": "a", "engine": {"name": "vllm"}, "targets": ["10.0.0.1:8000"]}],
        "outputs": {"ruler": "mimir"},
    }  # fmt: skip
    bundle = render_all(plan_of(config, tmp_path))
    servers = [path for path in bundle if path.startswith("prometheus/prometheus")]
    assert servers == [f"prometheus/prometheus-{n}.yml" for n in range(3)]
    for path in servers:
        document = yaml.safe_load(bundle[path])
        assert not {"rule_files", "alerting"} & set(document)
        assert document["remote_write"] == [{
            "url": "https://mimir.example.com/api/v1/push", "headers": {"X-Scope-OrgID": "k3"},
            "authorization": {"credentials_file": "/etc/prometheus/secrets/mimir"},
            "tls_config": {"ca_file": "/etc/prometheus/ca.crt"},
            "queue_config": {"capacity": 10000, "max_shards": 50, "max_samples_per_send": 2000,
                             "batch_send_deadline": "5s", "max_backoff": "10s"}}]  # fmt: skip
    assert "prometheus/mimir/k3.yml" in bundle


@pytest.mark.parametrize("devices", [{}, {"devices": "daemonset"}])
def test_promtool_takes_every_configuration(promtool: Path, tmp_path: Path, toolset: str, devices: dict) -> None:
    if toolset == "2.42":
        pytest.skip("Debian's 2.42 is built without kubernetes_sd")
    service = {"name": "a", "engine": {"name": "vllm"}, "accelerators": {"kind": "nvidia", "per_node": 8},
               "sidecar": {"collect": ["gpu"]}, "discovery": {"kubernetes": {"selector": {"app": "a"}}}}  # fmt: skip
    config = {
        "version": 1, "stack": "k3", "services": [service], "outputs": {"kubernetes": devices or True},
        "prometheus": {"version": toolset, "shards": 2, "remote_write": [{"url": "http://vm:8428/api/v1/write"}]},
    }  # fmt: skip
    write(render_all(plan_of(config, tmp_path)), tmp_path)
    for shard in range(2):
        file = tmp_path / "prometheus" / f"prometheus-{shard}.yml"
        done = subprocess.run([promtool, "check", "config", file], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
