"""Goal 1, GPU half: a stuck device never stalls a scrape, nor the news of the other devices.

One of eight simulated GPUs answers each call after 3 s. The scrape of an exporter on it is timed in turns with one on
eight healthy GPUs; then the time from a change of another GPU to its scrape, beside nvitop-exporter on the same
library and the same state.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from measure import Pair, interleaved, lax_factor, leave, report

from k3observe.drill.devices import nvml

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
INTERVAL, SLOW_MS, CARD = 1, 3000, 5
HEALTHY = {"cards": "0 1 2 3 4 5 6 7", "gpu.links": 18}
STUCK = {**HEALTHY, "gpu.3.sleep": SLOW_MS}
FRESH_SECONDS = 0.6  # longer than the exporter keeps an exposition, so that each scrape is rendered
CHANGES = 7
PATIENCE = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, env: dict[str, str]) -> Iterator[str]:
    """Run a server until the end of the block and yield the URL of its metrics once it answers."""
    process = subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, end = f"http://127.0.0.1:{port}/metrics", time.monotonic() + 120
    try:
        while True:
            try:
                scrape(url)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{command[0]} does not serve") from None
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def gpus(folder: Path, state: Path) -> AbstractContextManager[str]:
    """Run our exporter on simulated GPUs."""
    port = free_port()
    command = [sys.executable, "-m", "k3observe.exporters.main", "--web.listen-address", f"127.0.0.1:{port}",
               "--collect", "gpu", "--gpu.interval", str(INTERVAL)]
    return running(command, port, nvml.environment(folder, state))


def scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def wait_for(url: str, *patterns: str) -> None:
    """Wait until each pattern is found in the exposition."""
    end = time.monotonic() + PATIENCE
    while not all(re.search(pattern, scrape(url)) for pattern in patterns):
        if time.monotonic() > end:
            raise SystemExit(f"{url} never shows {patterns}")
        time.sleep(0.2)


def scrape_seconds(url: str) -> Callable[[], float]:
    def measure() -> float:
        time.sleep(FRESH_SECONDS / 2)
        started = time.perf_counter()
        scrape(url)
        return time.perf_counter() - started

    return measure


def peer() -> str | None:
    """Install nvitop-exporter into a virtual environment, once; None where that is not possible."""
    folder = CACHE / "nvitop-exporter"
    program = folder / "bin" / "nvitop-exporter"
    if not program.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
            subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "nvitop-exporter"], check=True,
                           capture_output=True, text=True, timeout=300)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"nvitop-exporter cannot be installed: {error}: {str(getattr(error, 'stderr', ''))[-300:]}")
            return None
    return str(program)


def seconds_until(seen: dict[str, Callable[[], bool]]) -> dict[str, float]:
    """Return for each name how long it took until its condition held; PATIENCE where it never did."""
    started, took = time.monotonic(), dict[str, float]()
    while len(took) < len(seen) and time.monotonic() - started < PATIENCE:
        for name, condition in seen.items():
            if name not in took and condition():
                took[name] = time.monotonic() - started
        time.sleep(0.1)
    return {name: took.get(name, PATIENCE) for name in seen}


def shows(url: str, series: str, value: int) -> Callable[[], bool]:
    """Return whether the exposition now has a value of a series, whose start is a pattern."""
    return lambda: any(float(found) == value for found in re.findall(rf"^{series}.*}} (\S+)$", scrape(url), re.M))


def news(state: Path, our_url: str, peer_url: str | None) -> list[dict[str, float]]:
    """Change the memory of one GPU again and again and time when each exporter shows it."""
    rounds = []
    for turn in range(1, CHANGES + 1):
        mebibytes = 1000 + turn
        nvml.write(state, {**STUCK, f"gpu.{CARD}.memory.used": mebibytes << 20})
        wanted = {"ours": shows(our_url, f'k3_accelerator_memory_used_bytes{{device="{CARD}"', mebibytes << 20)}
        if peer_url:
            wanted["nvitop"] = shows(peer_url, f'gpu_memory_used_MiB{{.*index="{CARD}"', mebibytes)
        rounds.append(seconds_until(wanted))
    return rounds


def stuck_gpu(folder: Path) -> list[bool]:
    nvml.build(folder)
    healthy, stuck = folder / "healthy.state", folder / "stuck.state"
    nvml.write(healthy, HEALTHY)
    nvml.write(stuck, HEALTHY)
    program = peer()
    with ExitStack() as stack:
        healthy_url = stack.enter_context(gpus(folder, healthy))
        stuck_url = stack.enter_context(gpus(folder, stuck))
        peer_url = None
        if program:
            port = free_port()
            command = [program, "--port", str(port), "--interval", str(INTERVAL)]
            peer_url = stack.enter_context(running(command, port, nvml.environment(folder, stuck)))
        wait_for(healthy_url, 'k3_accelerators_visible{vendor="nvidia"} 8')
        nvml.write(stuck, STUCK)
        wait_for(stuck_url, 'read_success{device="3".*} 0', f'read_success{{device="{CARD}".*}} 1')
        pair = interleaved(scrape_seconds(stuck_url), scrape_seconds(healthy_url), 15)
        results = [report("scrape with a stuck GPU", "stuck", "healthy", pair, "ms", at_most=3)]
        rounds = news(stuck, stuck_url, peer_url)
    ours_median = statistics.median(took["ours"] for took in rounds)
    results.append(report("another GPU's new value", "seen after", "poll + 1 s", Pair(ours_median, INTERVAL + 1), "s",
                          at_most=1))
    if peer_url:
        pair = Pair(ours_median, statistics.median(took["nvitop"] for took in rounds))
        results.append(report("another GPU's new value", "k3observe", "nvitop-exporter", pair, "s", at_most=0.6))
    else:
        print("skip another GPU's new value: no nvitop-exporter to compare with")
    return results


def main() -> None:
    if lax_factor() > 1:
        print(f"goals are loosened by {lax_factor():g}")
    with tempfile.TemporaryDirectory() as folder:
        leave(stuck_gpu(Path(folder)))


if __name__ == "__main__":
    main()
