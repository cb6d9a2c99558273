"""Write `k3observe/drill/engines/*.prom`: what engines expose, reduced to names, types, label sets and buckets.

Read from captures of the engines (`../shared/samples/engines`, or the folder given). Help texts, birth times and values
are left out: counters, histograms and gauges are 0, only `*_info` and `*_state` keep their 1. Families that do not
depend on the engine (Python's garbage collector, the web framework) are left out too.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from k3observe.drill.binaries import PROJECT
from k3observe.drill.exposition import Exposition, Family, Series, created_base, parse, write

SOURCES = {
    "vllm-0.33.prom": "vllm-0.33.0-served.prom",
    "sglang-0.5.23.prom": "sglang-0.5.23.prom",
    "mindie.prom": "mindie-documented.prom",
}
MODEL = "kimi-k3"
_OTHERS = ("python_", "process_", "http_")
_KEPT = ("process_start_time_seconds",)


def reduce(exposition: Exposition) -> tuple[Family, ...]:
    """Return the facts of a capture, in its order."""
    names = [family.name for family in exposition.families]
    return tuple(
        replace(family, help=None, series=tuple(_fact(family, series) for series in family.series))
        for family in exposition.families
        if family.name in _KEPT or not (family.name.startswith(_OTHERS) or created_base(family, names))
    )


def _fact(family: Family, series: Series) -> Series:
    labels = tuple((name, MODEL if name == "model_name" else value) for name, value in series.labels)
    return Series(series.name, labels, series.value if family.name.endswith(("_info", "_state")) else 0.0)


def main() -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = PROJECT.parent / "shared" / "samples" / "engines"
    parser.add_argument("captures", type=Path, nargs="?", default=default)
    captures: Path = parser.parse_args().captures
    folder = PROJECT / "k3observe" / "drill" / "engines"
    folder.mkdir(exist_ok=True)
    for name, source in SOURCES.items():
        facts = reduce(parse((captures / source).read_text(encoding="utf-8"), source))
        (folder / name).write_text(write(facts, "text", "colon"), encoding="utf-8")
        print(f"{name}: {len(facts)} families, {sum(len(family.series) for family in facts)} series")
    return 0


if __name__ == "__main__":
    sys.exit(main())
