"""Make the catalogue's tables of all metrics of an engine from a survey of its releases.

    python tools/make_history.py SURVEY_FOLDER

The survey is one ``history-<engine>.txt`` (``name|type|first|last|labels|...`` as the code of each release declares
them) beside expositions ``<engine>-<version>*.prom`` that the engine's own code wrote. What is kept are facts: the
name as scraped, its type, the first and the last release that has it, the release from which a flag hides it, its
labels beyond the common ones, and whether it is in every exposition of those releases.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from k3observe.catalogue.version import Version

OUT = Path(__file__).parent.parent / "k3observe" / "catalogue" / "history"
NAME = re.compile(r"^(vllm|sglang):[a-z][a-zA-Z0-9_]*[a-zA-Z0-9]$")
TYPES = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "Summary": "summary",
    "GaugeHistogram": "gauge",
    "?": "unknown",
}
# declared through a helper in these releases, so that the survey could not see the type
SUFFIXES = (
    ("_total", "counter"),
    ("_perc", "gauge"),
    ("_info", "gauge"),
    ("_delay_seconds", "histogram"),
    ("_latency_seconds", "histogram"),
)
COUNTERS = re.compile(
    r"^vllm:(?:(?:spec_decode|diffusion)_num_.*|kv_offload_(?:(?:load|store|total|tiering_read|tiering_write)_(?:bytes|"
    r"time)|allocation_failure|stores_skipped|tiering_(?:chunk_(?:hits|queries)|.*_failures|.*_dropped)))$"
)
GAUGES = re.compile(
    r"^vllm:(?:kv_offload_tiering_(?:active_.*_jobs|.*_ema)|simple_kv_offload_(?:used|pending_store)_blocks)$"
)
HISTOGRAMS = re.compile(r"^vllm:kv_offload_(?:size|load_size|store_size|cpu_allocation_size)$")
HIDDEN = {
    "vllm:gpu_cache_usage_perc": "0.11.0",
    "vllm:gpu_prefix_cache_queries_total": "0.11.0",
    "vllm:gpu_prefix_cache_hits_total": "0.11.0",
    "vllm:time_per_output_token_seconds": "0.12.0",
}
# what the Rust frontend of vLLM leaves out
PYTHON_ONLY = re.compile(
    r"^vllm:(?:engine_sleep_state|cache_config_info|mm_cache_.*|admission_rejections_total|"
    r"num_requests_kv_fetch_by_stage|kv_offload_.*|websocket_.*)$"
)
# SGLang makes these at 0 when it starts; its other counters and histograms come with their first event
SEEDED = {"sglang:prefill_effective_tokens_total", "sglang:dp_attention_tokens_total"}


def rows(survey: Path) -> dict[str, list[str]]:
    """Rows by scraped name: type, first, last, labels. A counter that was renamed to drop _total is one metric."""
    found: dict[str, list[str]] = {}
    for line in survey.read_text("utf-8").splitlines():
        fields = line.split("|")
        if len(fields) < 5 or not NAME.match(fields[0]) or fields[1] not in TYPES:
            continue
        name, kind, first, last, labels = fields[0], TYPES[fields[1]], *fields[2:5]
        if kind == "unknown":
            kind = next((type_ for suffix, type_ in SUFFIXES if name.endswith(suffix)), kind)
            kind = "counter" if COUNTERS.match(name) else "gauge" if GAUGES.match(name) else kind
            kind = "histogram" if HISTOGRAMS.match(name) else kind
        if kind == "counter" and not name.endswith("_total"):
            name += "_total"
        extra = ",".join(re.findall(r"'([a-z_]+)'", labels))
        if name in found:
            before = found[name]
            first = min(first, before[1], key=Version.parse)
            last = "now" if "now" in (last, before[2]) else max(last, before[2], key=Version.parse)
            extra = extra or before[3]
        found[name] = [kind, first, last, extra]
    return found


def families(exposition: Path) -> set[str]:
    """Names of the families that have samples."""
    names = set(re.findall(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)[{ ]", exposition.read_text("utf-8"), re.MULTILINE))
    return names | {re.sub(r"_(?:bucket|count|sum)$", "", name) for name in names}


def main(folder: Path) -> None:
    """Write one table an engine."""
    for engine in ("vllm", "sglang"):
        survey = folder / f"history-{engine}.txt"
        table = rows(survey)
        releases = sorted({r for row in table.values() for r in row[1:3] if r != "now"}, key=Version.parse)
        expositions = [
            (Version.parse(re.match(rf"{engine}-([0-9.]+[0-9])", path.name)[1]), families(path))  # type: ignore[index]
            for path in sorted(folder.glob(f"{engine}-*.prom"))
        ]
        lines = [
            "# Metrics of " + engine + " as scraped, by release; made by tools/make_history.py.",
            "# releases " + " ".join(releases),
            "# name\ttype\tfirst\tlast\thidden from\tpresence\tlabels",
        ]
        for name, (kind, first, last, labels) in sorted(table.items()):
            low, high = Version.parse(first), Version.parse(releases[-1] if last == "now" else last)
            visible = Version.parse(HIDDEN[name]) if name in HIDDEN else None
            seen = [
                name in names
                for version, names in expositions
                if low <= version <= high and (visible is None or version < visible)
            ]
            presence = "python" if PYTHON_ONLY.match(name) else "seeded" if name in SEEDED else "always"
            presence = presence if seen and all(seen) else ""
            lines.append(
                "\t".join((name, kind, first, "" if last == "now" else last, HIDDEN.get(name, ""), presence, labels))
            )
        OUT.mkdir(exist_ok=True)
        (OUT / f"{engine}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        sys.stdout.write(f"{engine}: {len(table)} metrics in {len(releases)} releases\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
