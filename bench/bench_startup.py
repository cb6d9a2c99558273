"""Goal 7: what ``--version`` of the programs costs beyond starting Python."""

from __future__ import annotations

import sys
from pathlib import Path

from measure import interleaved, leave, process_cpu_seconds, report

ROUNDS = 21


def main() -> None:
    """Print the ratios; exit 1 when one misses."""
    scripts = Path(sys.executable).parent
    python = process_cpu_seconds((sys.executable, "-c", "pass"))
    results = []
    for program, at_most in (("k3observe-exporter", 2.5), ("k3observe", 5.0)):
        pair = interleaved(process_cpu_seconds((str(scripts / program), "--version")), python, ROUNDS)
        results.append(report("goal 7", f"{program} --version", "python -c pass", pair, "ms", at_most=at_most))
    leave(results)


if __name__ == "__main__":
    main()
