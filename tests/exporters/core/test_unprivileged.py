"""The exporter as a stranger to its machine: user nobody, nothing to write to, no home, no environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from k3observe.drill.devices import npu_smi, nvml
from tests.exporters.exporter_process import PROGRAM, Engine, Exporter, wait_until

READ_ONLY = 'mount --make-rprivate / && mount -o remount,bind,ro / && cd / && exec "$@"'
READS = "dac_read_search"
"""The one capability: the Python of the tests may lie in a home of root's."""
NOBODY = (
    "unshare", "--mount", "/bin/sh", "-c", READ_ONLY, "sh", "setpriv", "--reuid=65534", "--regid=65534",
    "--clear-groups", "--no-new-privs", f"--bounding-set=-all,+{READS}", f"--inh-caps=-all,+{READS}",
    f"--ambient-caps=-all,+{READS}", "env", "-i")


def test_nobody_on_a_read_only_root_without_home_or_environment_reads_everything(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    if subprocess.run((*NOBODY, sys.executable, "-c", ""), capture_output=True, check=False).returncode:
        pytest.skip("this root may not mount")
    library = nvml.build(tmp_path)
    nvml.write(tmp_path / "nvml.state", {"cards": "0 1"})
    program = npu_smi.install(tmp_path, npu_smi.cards("910", 2))
    log = tmp_path / "engine.log"
    log.write_text("")
    engine = Engine()
    engine.body = b'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5\n'
    variables = [f"{name}={value}" for name, value in nvml.environment(library.parent, tmp_path / "nvml.state").items()]
    process = subprocess.Popen(
        (*NOBODY, *variables, *PROGRAM, "--collect=gpu,npu,kv-cache,experts", f"--npu.smi-path={program}",
         f"--kv-cache.url={engine.url}", "--experts.source=log", f"--experts.log-file={log}",
         "--web.listen-address=127.0.0.1:0"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    exporter = Exporter(process)
    try:
        exporter.port = int(exporter.wait_for_log(r"listening on 127\.0\.0\.1:(\d+)")[1])
        assert os.stat(f"/proc/{process.pid}").st_uid == 65534
        wait_until(lambda: exporter.get("/-/ready")[0] == 200)
        assert exporter.metric('k3_accelerators_visible{vendor="nvidia"}') == 2
        assert exporter.metric('k3_accelerators_visible{vendor="ascend"}') == 2
        assert exporter.metric("k3_kv_cache_usage_ratio") == 0.5
        for collector in ("gpu", "npu", "kv-cache", "experts"):
            assert exporter.metric(f'k3_source_up{{collector="{collector}"') == 1, collector
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert "Traceback" not in exporter.log
    finally:
        process.kill()
        process.communicate()
        engine.close()
    once = subprocess.run(
        (*NOBODY, *PROGRAM, "--collect=npu", f"--npu.smi-path={program}", f"--textfile={tmp_path}/k3.prom"),
        capture_output=True, text=True, timeout=30, check=False)
    assert (once.returncode, once.stderr) == (
        1, f"k3observe-exporter: --textfile: {tmp_path}/k3.prom: Read-only file system\n")
