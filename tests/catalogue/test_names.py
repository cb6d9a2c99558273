"""Raw names stand in the catalogue and nowhere else, and what is rendered for a version exists in that version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from k3observe.catalogue import Catalogue, Version
from k3observe.catalogue.history import history, name_problem
from k3observe.drill.binaries import PROJECT

CONFIG = """
version: 1
stack: k3
services:
  - name: kimi-k3
    engine: {name: ENGINE, VERSIONargs: {prefix_caching: true, balancedness_report: both, eplb: true}}
    targets: ["10.0.0.1:8000"]
    role: ROLE
    accelerators: {kind: nvidia, per_node: 8}
    sidecar: {collect: [gpu, experts]}
"""
VERSIONS = [
    ("vllm", "0.8.5"), ("vllm", "0.9.2"), ("vllm", "0.11"), ("vllm", "0.12"), ("vllm", "0.20"), ("vllm", "0.33"),
    ("vllm", "0.6.6"), ("vllm", "0.16.0"), ("vllm-ascend", "0.23"), ("sglang", "0.4.10"), ("sglang", "0.5.5"),
    ("sglang", "0.5.10"), ("sglang", "0.5.23"), ("mindie", ""),
]  # fmt: skip
PREFIXES = ("vllm_", "sglang_", "DCGM_", "npu_", "machine_npu", "llm_")
ENGINE_NAME = re.compile(r"(?<![a-zA-Z0-9_])(vllm|sglang)(?:\[:_\]|:)([a-z][a-zA-Z0-9_]*)")


def raw_names(catalogue: Catalogue) -> set[str]:
    """Names that would be raw wherever they stood; those of our sidecar and Prometheus' own ``up`` are left out."""
    names: set[str] = set()
    for source in catalogue.sources.values():
        if source.name not in ("sidecar", "prometheus"):
            names |= {name for entry in source.entries for name in entry.metrics}
        table = history(source.history)
        names |= set(table.metrics) if table else set()
    return names


def test_no_rule_and_no_dashboard_has_a_raw_name(catalogue: Catalogue) -> None:
    names = raw_names(catalogue)
    spelled = names | {name.replace(":", "_") for name in names}
    files = [path for folder in ("rules", "dashboards") for path in sorted((PROJECT / folder).rglob("*"))
             if path.suffix in (".yaml", ".yml", ".py", ".json", ".j2")]  # fmt: skip
    assert files
    for path in files:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            words = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)) & spelled
            # names without a prefix of their own are words too: there only a selector is a use
            found = {word for word in words if ENGINE_NAME.match(word) or word.startswith(PREFIXES)
                     or re.search(rf"(?<![:\w]){word}\s*[{{\[]", line)}  # fmt: skip
            assert not found, f"{path.relative_to(PROJECT)}:{number}: {found}"


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_every_name_rendered_for_a_version_exists_in_it(
    engine: str, version: str, catalogue: Catalogue, tmp_path: Path
) -> None:
    rendered = rules_of(engine, version, tmp_path)
    parsed = Version.parse(version) if version else None
    source = "vllm" if engine == "vllm-ascend" else engine
    seen = set()
    for rule in rendered:
        for prefix, rest in ENGINE_NAME.findall(rule["expr"]):
            assert prefix == source, rule
            assert parsed is not None
            problem = name_problem(catalogue, source, f"{prefix}:{rest}", parsed)
            assert problem is None, (rule.get("record") or rule.get("alert"), problem)
            seen.add(rest)
    assert len(seen) >= 12 or engine == "mindie"
    if engine == "mindie":
        text = " ".join(rule["expr"] for rule in rendered)
        assert "npu_cache_usage_perc{" in text
        assert 'job="k3-engine"' in text


def test_an_upgrade_changes_exactly_the_names_that_changed(tmp_path: Path) -> None:
    before, after = (
        {rule.get("record") or rule.get("alert"): rule["expr"] for rule in rules_of("vllm", version, tmp_path)}
        for version in ("0.10.1.1", "0.10.2")
    )
    changed = {name for name in before if before[name] != after.get(name)} | (after.keys() - before.keys())
    assert changed == {f"k3:inter_token_latency_seconds_{part}:rate5m" for part in ("bucket", "sum", "count")}


def rules_of(engine: str, version: str, folder: Path, role: str = "unified") -> list[dict[str, str]]:
    from k3observe.cli.stack import load_plan
    from k3observe.render.bundle import render

    config = folder / "k3observe.yaml"
    stated = f'version: "{version}", ' if version else ""
    config.write_text(CONFIG.replace("ENGINE", engine).replace("VERSION", stated).replace("ROLE", role))
    files = render(load_plan(config)[1], frozenset({"prometheus"}))
    return [
        rule
        for path, body in files.items() if path.startswith("prometheus/rules/")
        for group in yaml.safe_load(body)["groups"] for rule in group["rules"]
    ]  # fmt: skip


def test_a_name_in_somebodys_dashboard_is_explained(catalogue: Catalogue) -> None:
    def said(name: str, version: str, source: str = "vllm") -> str | None:
        problem = name_problem(catalogue, source, name, Version.parse(version))
        return problem.en if problem else None

    assert said("vllm:gpu_cache_usage_perc", "0.33") == (
        "vllm:gpu_cache_usage_perc is unknown to vLLM 0.33: use vllm:kv_cache_usage_perc, there since 0.9.2"
    )
    assert said("vllm_time_per_output_token_seconds_bucket", "0.33") == (
        "vllm_time_per_output_token_seconds_bucket is unknown to vLLM 0.33: "
        "use vllm:inter_token_latency_seconds_bucket, there since 0.10.2"
    )
    assert said("vllm:gpu_cache_usage_perc", "0.11") == (
        "vllm:gpu_cache_usage_perc is hidden in vLLM 0.11: use vllm:kv_cache_usage_perc, there since 0.9.2"
    )
    assert said("vllm:engine_sleep_state", "0.9.2") == (
        "vllm:engine_sleep_state is unknown to vLLM 0.9.2: it came with 0.11.1"
    )
    assert said("vllm:num_requests_swapped", "0.33") == (
        "vllm:num_requests_swapped is unknown to vLLM 0.33: removed after 0.9.0"
    )
    assert said("vllm:eplb_rebalancing", "0.33") == "vllm:eplb_rebalancing is unknown to every surveyed release of vLLM"
    assert said("sglang:num_prefill_infight_queue_reqs", "0.5.23", "sglang") == (
        "sglang:num_prefill_infight_queue_reqs is unknown to SGLang 0.5.23: removed after 0.5.1"
    )
    assert said("vllm:kv_cache_usage_perc", "0.33") is None
    assert said("vllm:iteration_tokens_total_sum", "0.33") is None
    assert said("node_load1", "0.33") is None
