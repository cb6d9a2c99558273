"""Goal 1, NPU half: scrapes with an ``npu-smi`` that hangs against scrapes with a healthy one.

Two exporters run at the same time, one on each tool, and are scraped in turn, each time after the moment for which an
encoded exposition is kept.
"""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import interleaved, leave, report

from k3observe.drill.devices import npu_smi
from k3observe.exporters.web.snapshots import VALID_SECONDS

SCRAPES = 31


def start(program: Path) -> tuple[subprocess.Popen[str], str]:
    """Run an exporter on a simulated tool; return it and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "k3observe.exporters.main", "--collect", "npu", f"--npu.smi-path={program}",
         "--npu.interval=1", "--npu.timeout=2", "--web.listen-address=127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening on ([0-9.]+:[0-9]+)", line):
            return process, found[1]
    raise SystemExit(f"the exporter ended with status {process.wait()} before it listened")


def scrape(address: str) -> str:
    """Return one exposition."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read().decode()
    connection.close()
    return body


def seconds_of_scrape(address: str) -> Callable[[], float]:
    """Return a function that scrapes once, with nothing kept, and returns the seconds it took."""

    def measure() -> float:
        time.sleep(VALID_SECONDS + 0.05)
        started = time.perf_counter()
        scrape(address)
        return time.perf_counter() - started

    return measure


def wait_for(address: str, text: str) -> None:
    """Scrape until ``text`` is there."""
    while text not in scrape(address):
        time.sleep(0.1)


def main() -> None:
    """Print the ratio; exit 1 when it misses."""
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as name:
        addresses = []
        try:
            for kind in ("hung", "healthy"):
                folder = Path(name, kind)
                folder.mkdir()
                program = npu_smi.install(folder, npu_smi.cards("910", 8))
                process, address = start(program)
                processes.append(process)
                addresses.append(address)
                wait_for(address, 'k3_accelerator_read_success{device="7-0"')
                if kind == "hung":
                    npu_smi.write_state(program, npu_smi.cards("910", 8) | {"fault": {"kind": "hang"}})
                    wait_for(address, 'k3_source_up{collector="npu",source="npu-smi"} 0.0')
            hung, healthy = (seconds_of_scrape(address) for address in addresses)
            pair = interleaved(hung, healthy, SCRAPES)
        finally:
            for process in processes:
                process.terminate()
                process.wait(5)
    leave([report("goal 1", "scrape p50 with a hung npu-smi", "with a healthy one", pair, "ms", at_most=3)])


if __name__ == "__main__":
    main()
