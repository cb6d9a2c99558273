"""Goal 8: a log is followed without losing a line over renames, and its backlog is read at half the speed of counting.

Pygtail (PyPI) reads the same rotating log beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from measure import cpu_seconds, interleaved, leave, report

from k3observe.exporters.experts.follow import Follower
from k3observe.exporters.experts.formats import LineReader

LINES = 400_000
EVERY = 100
GENERATIONS, LINES_PER_GENERATION, PAUSE = 60, 400, 0.02
POLL = 0.2
ACCESS = '(APIServer pid=4600) INFO:     10.2.3.4:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
STEP = (
    "(Worker_DP0_TP0_EP0 pid=4711) INFO 11-02 10:15:01 [eplb_state.py:634] EPLB step: {step} for model "
    "moonshotai/Kimi-K3: avg_tokens=61440.00, max_tokens=66941, balancedness=0.9178, "
    "steps until the next rearrangement: 750\n")
PYGTAIL = """
import sys, time
from pygtail import Pygtail
path, poll = sys.argv[1], float(sys.argv[2])
while True:
    for line in Pygtail(path, offset_file=path + ".offset"):
        sys.stdout.write(line)
    sys.stdout.flush()
    time.sleep(poll)
"""


def backlog(path: Path) -> bool:
    size, readings = path.stat().st_size, 0

    def follow() -> None:
        nonlocal readings
        stop, reader, seen, readings = threading.Event(), LineReader("vllm", "0.33.0"), 0, 0

        def block(data: bytes) -> None:
            nonlocal seen, readings
            seen += len(data)
            readings += sum(1 for _ in reader.read_block(data, 0.0))
            if seen == size:
                stop.set()

        Follower(str(path), block, from_start=True).run(stop, lambda error: None)

    def count() -> None:
        with path.open("rb") as file:
            lines = sum(1 for _ in file)
        assert lines == LINES, lines

    pair = interleaved(cpu_seconds(follow), cpu_seconds(count))
    assert readings == LINES // EVERY, readings
    return report(
        f"backlog of {size >> 20} MiB, every {EVERY}th line a reading", "followed and read", "lines counted", pair,
        "ms", at_most=2)


def lost_over_renames(folder: Path) -> bool:
    """Both follow a log that is renamed every 20 ms, faster than they look, and whose writer turns to the new late."""
    log, ours = folder / "rotating.log", []
    log.touch()
    packages = folder / "packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), "pygtail"], check=True)
    stop, theirs = threading.Event(), folder / "pygtail.out"
    follower = Follower(str(log), lambda block: ours.extend(block.splitlines()), poll_seconds=POLL)
    thread = threading.Thread(target=follower.run, args=(stop, lambda error: None))
    with theirs.open("wb") as output:
        pygtail = subprocess.Popen(
            [sys.executable, "-c", PYGTAIL, str(log), str(POLL)], stdout=output,
            env={**os.environ, "PYTHONPATH": str(packages)})
        thread.start()
        time.sleep(1)
        written = []
        for generation in range(GENERATIONS):
            with log.open("ab", buffering=0) as file:
                for number in range(LINES_PER_GENERATION):
                    written.append(b"%d %d" % (generation, number))
                    file.write(written[-1] + b"\n")
                for age in range(generation, 0, -1):
                    os.rename(f"{log}.{age}", f"{log}.{age + 1}")
                os.rename(log, f"{log}.1")
                log.touch()
                written.append(b"%d late" % generation)
                file.write(written[-1] + b"\n")
            time.sleep(PAUSE)
        time.sleep(4 * POLL)
        stop.set()
        thread.join()
        pygtail.terminate()
        pygtail.wait()
    lost = [len(set(written) - set(lines)) for lines in (ours, theirs.read_bytes().splitlines())]
    good = lost[0] == 0 and len(ours) == len(written)
    print(
        f"{'ok  ' if good else 'MISS'} renames: of {len(written)} lines in {GENERATIONS} generations lost {lost[0]}, "
        f"read twice {len(ours) - len(set(ours))}; pygtail lost {lost[1]}")
    return good


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "engine.log"
        with path.open("w") as file:
            for number in range(LINES):
                file.write(STEP.format(step=number) if number % EVERY == 0 else ACCESS.format(port=number))
        results = [backlog(path)]
        path.unlink()
        results.append(lost_over_renames(folder))
    leave(results)


if __name__ == "__main__":
    main()
