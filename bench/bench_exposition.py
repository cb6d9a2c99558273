"""Goal 2: the reader of an engine's exposition against prometheus_client's parser and against splitting the text."""

from __future__ import annotations

import math

from measure import cpu_seconds, interleaved, leave, report
from prometheus_client.parser import text_string_to_metric_families

from k3observe.exporters.exposition import Reader
from k3observe.exporters.kvcache.engines import NAMES

ENGINES, LINES = 10, 16_000
BOUNDS = (*(round(0.001 * 1.3**n, 6) for n in range(40)), "+Inf")


def exposition() -> str:
    """16,000 lines of ten data-parallel engines: the families of the KV cache, and histograms as engines have them."""
    wanted = [name for name in NAMES if name.startswith("vllm:") and "gpu_" not in name]
    lines: list[str] = []

    def family(name: str, kind: str, samples: list[str]) -> None:
        lines.extend((f"# HELP {name} What the engine says of it.", f"# TYPE {name} {kind}", *samples))

    def labels(engine: int, extra: str = "") -> str:
        return f'{{engine="{engine}",{extra}model_name="moonshotai/Kimi-K3"}}'

    for name in wanted:
        counter = name.endswith("_total")
        family(name, "counter" if counter else "gauge",
               [f"{name}{labels(e)} {e * 0.0625 + counter * 1e6}" for e in range(ENGINES)])
    number = 0
    while len(lines) < LINES:
        name = f"vllm:request_phase_{number}_seconds"
        family(name, "histogram", [
            f"{name}_bucket{labels(e, f'le={chr(34)}{bound}{chr(34)},')} {e * 31 + n}.0"
            for e in range(ENGINES) for n, bound in enumerate(BOUNDS)])
        number += 1
    return "\n".join(lines[:LINES]) + "\n"


def main() -> None:
    """Print both ratios; exit 1 when one misses or a value differs."""
    text = exposition()
    body = text.encode()
    reader = Reader(NAMES)
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in reader.read(body).samples}
    wanted = set(NAMES)
    right = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text) for s in family.samples if s.name in wanted}
    equal = found.keys() == right.keys() and all(math.isclose(found[key], right[key]) for key in right)
    print(f"{len(text.splitlines())} lines, {len(text) / 1e6:.1f} MB, {len(found)} samples, values equal: {equal}")
    ours = cpu_seconds(lambda: reader.read(body), 10)
    parser = interleaved(ours, cpu_seconds(lambda: list(text_string_to_metric_families(text))), 7)
    split = interleaved(ours, cpu_seconds(lambda: text.split("\n"), 10))
    leave([
        equal,
        report("goal 2", "reader", "prometheus_client.parser", parser, "ms", at_most=1 / 40),
        report("goal 2", "reader", "text.split", split, "ms", at_most=6),
    ])


if __name__ == "__main__":
    main()
