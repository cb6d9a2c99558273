"""Goal 6: how rendering grows with services, and what validating and writing 8,000 rules costs beside promtool."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from measure import cpu_seconds, interleaved, leave, process_cpu_seconds, report

from k3observe import bundle
from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config.loader import loads
from k3observe.drill.binaries import find
from k3observe.lint.promql import parse
from k3observe.plan import Plan, plan
from k3observe.render.bundle import render
from k3observe.render.text import to_yaml
from k3observe.rules import load as load_rules

REPLICAS, FEW, MANY, RULES = 8, 100, 1000, 8000
OWN = ("EngineDown", "EngineReplicasLow", "EngineStalled", "RequestsQueueing", "KVCacheUsageHigh", "KVCacheSaturated",
       "KVCachePreemptionsHigh", "TimeToFirstTokenHigh")  # fmt: skip
"""Alerts that each service may have with a ``for`` of its own."""


def configuration(count: int, own: tuple[str, ...] = ()) -> str:
    """So many services of eight replicas; the alerts ``own`` are shared by none of them."""
    services: list[dict[str, Any]] = [
        {"name": f"service-{n:04}", "engine": {"name": "vllm", "version": "0.33"}, "model": {"preset": "kimi-k3"},
         "targets": [f"10.{n // 250}.{n % 250}.{replica}:8000" for replica in range(1, REPLICAS + 1)],
         "alerts": {name: {"for": f"{300 + n}s"} for name in own}}
        for n in range(count)]  # fmt: skip
    return to_yaml({"version": 1, "stack": "bench", "services": services})


def planned(text: str) -> Plan:
    return plan(loads(text, "bench"), load_catalogue([]), load_rules())


def rules(files: dict[str, bytes], kind: str) -> int:
    """Count rules of a kind, alert or record, in a bundle."""
    return sum(content.count(f"- {kind}: ".encode()) for path, content in files.items() if "/rules/" in path)


def _beside_promtool() -> bool:
    """Parse the expressions of 8,000 alert rules and write them, against promtool reading them."""
    rendered = render(planned(configuration(MANY, OWN)), frozenset({"prometheus"}))
    files = {path: text for path, text in rendered.items() if path.startswith("prometheus/rules/bench-alerts-")}
    documents = [yaml.load(content, yaml.CSafeLoader) for content in files.values()]
    expressions = [rule["expr"] for document in documents for group in document["groups"] for rule in group["rules"]]
    assert len(expressions) >= RULES, len(expressions)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle.write(folder / "read", files)
        numbers = iter(range(1000))

        def validate_and_write() -> None:
            for expression in expressions:
                parse(expression)
            bundle.write(folder / str(next(numbers)), files)

        paths = [str(folder / "read" / path) for path in files]
        check = process_cpu_seconds([str(find("promtool").path), "check", "rules", "--lint=none", *paths])
        pair = interleaved(cpu_seconds(validate_and_write), check, 7)
    what = f"validating and writing {len(expressions)} rules"
    return report("goal 6", what, "promtool check rules", pair, "ms", at_most=1)


def main() -> None:
    few, many = configuration(FEW), configuration(MANY)
    growth = interleaved(cpu_seconds(lambda: render(planned(many))), cpu_seconds(lambda: render(planned(few))), 7)
    results = [report("goal 6", f"{MANY} services", f"{FEW}", growth, "ms", at_most=1.2 * MANY / FEW)]
    small, large = render(planned(few)), render(planned(many))
    # every service records how many replicas it should have; nothing else is its own
    results.append(rules(small, "alert") == rules(large, "alert"))
    results.append(rules(large, "record") - rules(small, "record") == MANY - FEW)
    print(f"{'ok  ' if all(results[1:]) else 'MISS'} goal 6: {rules(large, 'alert')} alert rules of {MANY} services, "
          f"{rules(small, 'alert')} of {FEW}; {rules(large, 'record')} recording rules, {rules(small, 'record')}")
    results.append(_beside_promtool())
    leave(results)


if __name__ == "__main__":
    main()
