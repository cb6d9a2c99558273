"""The documented receiver, called by a real Alertmanager with the rendered routes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from k3observe.drill.servers import alertmanager, free_port, wait_until
from tests.conftest import ROOT
from tests.kubernetes.conftest import Render, stack, write


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_one_call_a_service_for_a_firing_rebalance(
    rendered: Render, alertmanager_bin: Path, tmp_path: Path
) -> None:
    port, calls, program = free_port(), tmp_path / "calls", tmp_path / "rebalance"
    program.write_text(f'#!/bin/sh\necho "$1 $K3_ALERTNAME" >> {calls}\n')
    program.chmod(0o755)
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "url").write_text(f"http://127.0.0.1:{port}/s3cret")
    notify = {"receivers": {"balance": {"webhook": {"url_file": str(tmp_path / "url")}}},
              "routes": {"rebalance": "balance"}, "group_wait": "1s", "group_interval": "1s"}  # fmt: skip
    write(rendered(stack(notify=notify), "alertmanager"), tmp_path)
    receiver = subprocess.Popen(
        [sys.executable, ROOT / "docs" / "examples" / "rebalance_receiver.py", f"--port={port}",
         f"--token-file={tmp_path / 'token'}", f"--program={program}"], stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        with alertmanager(alertmanager_bin, tmp_path / "alertmanager" / "alertmanager.yml", tmp_path) as server:
            labels = {"stack": "kimi-k3", "service": "kimi-k3", "severity": "warning"}
            alerts = [
                {"labels": {**labels, "alertname": "ExpertLoadVarianceHigh", "action": "rebalance"}},
                {"labels": {**labels, "alertname": "ExpertBalanceLow", "action": "rebalance"}},
                {"labels": {**labels, "alertname": "KVCacheUsageHigh", "action": "scale_out"}},
            ]
            request = urllib.request.Request(
                f"{server.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=10).close()
            wait_until(calls.exists, "the call", 30)
            time.sleep(3)
    finally:
        receiver.terminate()
        receiver.wait(10)
    lines = calls.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0] in ("kimi-k3 ExpertLoadVarianceHigh", "kimi-k3 ExpertBalanceLow")
