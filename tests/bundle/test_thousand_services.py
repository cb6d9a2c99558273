"""A configuration of 1,000 services renders in time linear in its size, and in one rule an alert."""

from __future__ import annotations

import time
from collections import Counter

import yaml

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import loads
from k3observe.plan import plan
from k3observe.render.bundle import Bundle, render
from k3observe.rules import load as load_rules

SERVICE = """\
  - name: svc-{n}
    engine: {{name: vllm, version: "0.33", args: {{max_num_seqs: 16, gpu_memory_utilization: 0.9, eplb: true}}}}
    targets: ["10.{a}.{b}.1:8000"]
    accelerators: {{per_node: 8}}
    sidecar: {{collect: [gpu, experts]}}
"""


def rendered(count: int) -> tuple[Bundle, float]:
    """The bundle of many like services, and the processor seconds it took from text to bytes."""
    services = "".join(SERVICE.format(n=n, a=n // 250, b=n % 250) for n in range(count))
    began = time.process_time()
    loaded = loads("version: 1\nstack: k3\nservices:\n" + services)
    bundle = render(plan(loaded, load_catalogue(), load_rules()))
    return bundle, time.process_time() - began


def alerts(bundle: Bundle) -> Counter[str]:
    return Counter(
        rule["alert"]
        for path, content in bundle.items() if path.startswith("prometheus/rules/") and "alerts-" in path
        for group in yaml.load(content, yaml.CSafeLoader)["groups"] for rule in group["rules"]
    )  # fmt: skip


def test_ten_times_the_services_take_ten_times_as_long_and_no_more_rules() -> None:
    rendered(2)
    hundred, short = rendered(100)
    thousand, long = rendered(1_000)
    assert set(alerts(thousand).values()) == {1}
    assert alerts(thousand) == alerts(hundred)
    assert thousand.keys() == hundred.keys()
    assert long < 20 * short + 0.5, f"100 services {short:.2f} s, 1,000 services {long:.2f} s"
