"""Goal 9: balance of 92 layers x 896 experts on 64 ranks against ``json.loads`` of the same counts."""

from __future__ import annotations

import json
import random

from measure import cpu_seconds, interleaved, leave, report

from k3observe.exporters.experts.balance import balance, placed, relative_loads

LAYERS, EXPERTS, RANKS = 92, 896, 64


def main() -> None:
    source = random.Random(1)
    counts = [[source.randrange(20_000) for _ in range(EXPERTS)] for _ in range(LAYERS)]
    text = json.dumps(counts)

    def values() -> None:
        ranks = placed(counts, RANKS)
        balance(counts)
        balance(ranks)
        relative_loads(ranks)

    pair = interleaved(cpu_seconds(values, 10), cpu_seconds(lambda: json.loads(text), 10))
    leave([report("balance of 92 x 896 x 64", "both scopes", "json.loads", pair, "ms", at_most=12)])


if __name__ == "__main__":
    main()
