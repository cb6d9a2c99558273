"""What checks of expressions find, and what they leave alone: variations beyond the examples of their pages."""

from __future__ import annotations

import pytest

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.config import loads
from k3observe.config.source import Located
from k3observe.lint.configured import surroundings
from k3observe.lint.folder import Document
from k3observe.lint.labels import labels
from k3observe.lint.promql import parse, without_variables
from k3observe.lint.run import lint
from k3observe.lint.surroundings import Surroundings

AROUND = Surroundings(
    scrape_interval=15, top_bounds={"x_seconds": 60.0}, shares=frozenset({"vllm:kv_cache_usage_perc"}), reserved=0.9)
RATIO = "(sum(rate(e_total[5m])) or 0 * sum(rate(q_total[5m]))) / (sum(rate(q_total[5m])) > 0)"


def ids(expr: str, kind: str = "alert", around: Surroundings = AROUND, **fields: object) -> set[str]:
    """Checks that find something in one rule."""
    located = Located({"groups": [{"name": "g", "rules": [{kind: "a", "expr": expr, **fields}]}]}, "r.yml")
    return {finding.check for finding in lint([Document("rules", located, "")], around)}


@pytest.mark.parametrize(("check", "expr"), [
    ("rate-window", "sum(increase(x_total[59s])) > 100"),
    ("rate-window", "irate(x_total[30s]) > 1"),
    ("ratio-unguarded", "sum(rate(a_total[5m])) / sum(rate(a_total[5m]) > bool 0) > 2"),
    ("ratio-unguarded", "vllm:num_requests_waiting / vllm:num_requests_running > 2"),
    ("ratio-unguarded", "max(a:b:rate5m / c:d:rate5m) > 2"),
    ("ratio-numerator-absent", "1 - sum(rate(ok_total[5m])) / (sum(rate(q_total[5m])) > 0) > 0.1"),
    ("ratio-numerator-absent", "0.9 > sum(rate(ok_total[5m])) / (sum(rate(q_total[5m])) > 0)"),
    ("ratio-low-traffic", f"0.05 < {RATIO}"),
    ("average-of-ratios", f"avg(({RATIO})) > 0.1 and sum(rate(q_total[5m])) > 1"),
    ("le-spelling", 'rate(x_bucket{le=~"0.5|1"}[5m]) > 1'),
    ("le-spelling", 'rate(x_bucket{le!="1.0"}[5m]) > 1'),
    ("quantile-without-le", "histogram_quantile(0.9, sum without (le) (rate(x_bucket[5m]))) > 1"),
    ("threshold-above-top-bucket", "60 < histogram_quantile(0.9, sum by (le) (rate(x_seconds_bucket[5m])))"),
    ("memory-reserved", "100 * DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 90"),
    ("memory-reserved", "llm_gpu_memory_used_bytes / 80e9 >= 0.9"),
    ("unscaled-variance", "stddev(rate(x_total[5m])) > 10"),
    ("impossible-ratio", "1.2 < avg(rate(x_total[5m])) / (max(rate(x_total[5m])) > 0)"),
    ("impossible-ratio", "max(load) / min(load) >= 1"),
    ("percent-of-share", "avg_over_time(vllm:kv_cache_usage_perc[5m]) > 90"),
    ("counter-as-gauge", "0 < max by (a) (x_total)"),
    ("counter-as-gauge", 'x_count{a="b"} >= 100'),
    ("counter-born-at-one", "sum(increase(restarts_total[10m])) >= 1"),
    ("absent-of-many", 'absent_over_time(up{job="a"}[5m])'),
    ("or-vector", "sum by (a) (x) or vector(0) < 1"),
    ("or-vector", "(vector(0) or x) < 1"),
    ("or-vector", "(x or on () vector(0)) < 1"),
    ("label-without-metric", 'count({model_name="a"}) < 1'),
])  # fmt: skip
def test_found(check: str, expr: str) -> None:
    assert f"promql/{check}" in ids(expr)


@pytest.mark.parametrize(("errors", "found"), [
    ("sum(rate(e_total[5m]))", {"promql/ratio-numerator-absent"}),
    ("sum(rate(e_total[5m])) or 0 * sum(rate(q_total[5m]))", set()),
])
def test_a_recorded_numerator_is_absent_unless_its_own_rule_fills_it(errors: str, found: set[str]) -> None:
    recorded = {
        "a:errors:rate5m": errors,
        "a:errors:rate1h": "avg_over_time(a:errors:rate5m[1h])",
        "a:requests:rate1h": "sum(rate(q_total[1h]))",
        "a:error:ratio_rate1h": "a:errors:rate1h / (a:requests:rate1h > 0)",
    }
    rules = [{"record": name, "expr": expr} for name, expr in recorded.items()]
    located = Located({"groups": [{"name": "g", "rules": rules}]}, "r.yml")
    assert {finding.check for finding in lint([Document("rules", located, "")], AROUND)} == found


def test_buckets_are_there_with_their_count() -> None:
    expr = 'sum(rate(x_seconds_bucket{a="b",le="5"}[5m])) / (sum(rate(x_seconds_count{a="b"}[5m])) > 0)'
    assert "promql/ratio-numerator-absent" not in ids(expr, "record")


@pytest.mark.parametrize("expr", [
    "rate(x_total[1m]) > 1",
    "max_over_time(x[15s]) > 1",
    "node_filesystem_avail_bytes / node_filesystem_size_bytes < 0.1",
    "sum(rate(a_total[5m])) / count(up) > 1",
    "rate(x_seconds_sum[5m]) / (rate(x_seconds_count[5m]) > 0) > 3",
    f"{RATIO} < 0.5 and sum(rate(q_total[5m])) > 1",
    "sum(rate(e_total[5m])) / sum(rate(q_total[5m])) > 0.5 and sum(rate(q_total[5m])) > 1",
    "sum(rate(a_total[5m])) / clamp_min(sum(rate(q_total[5m])), 1) > 2 and sum(rate(q_total[5m])) > 1",
    'rate(x_bucket{le="+Inf"}[5m]) > 1',
    'rate(x_bucket{le="0.5"}[5m]) > 1',
    'rate(x_bucket{le=~"1([.]0)?|0.5"}[5m]) > 1',
    "histogram_quantile(0.9, rate(x_seconds_bucket[5m])) > 59",
    "histogram_quantile(0.9, sum by (a) (rate(native_histogram[5m]))) > 1",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.95",
    "DCGM_FI_DEV_FB_USED / 80e3 > 0.8 and delta(DCGM_FI_DEV_FB_USED[6h]) > 1000",
    "vllm:gpu_cache_usage_perc > 0.85",
    "max(load) / avg(load) > 1.5",
    "100 * avg(load) / max(load) > 50",
    "100 * vllm:kv_cache_usage_perc > 90",
    "delta(x_total[5m]) > 1",
    "x_total - x_total offset 1h > 5",
    "(x_total unless x_total offset 5m) > 0",
    "increase(requests_total[5m]) > 0",
    "increase(errors_total[5m]) > 10",
    'absent(up{job="a", instance="b:1"})',
    "(sum(x) or vector(0)) < 1",
    "count by (a) (x_total) < 2",
])  # fmt: skip
def test_left_alone(expr: str) -> None:
    assert ids(expr) == set()


@pytest.mark.parametrize(("expr", "text", "empty"), [
    ("sum by (a) (x) > 1", "{{ $labels.a }}{{ .Labels.a }}", False),
    ("sum by (a) (x) > 1", '{{ index $labels "b" }}', True),
    ("sum without (b) (x) > 1", "{{ $labels.a }}", False),
    ("sum without (b) (x) > 1", "{{ $labels.b }}", True),
    ("sum by (a) (x) / on (a) group_left (b) y > 1", "{{ $labels.b }}", False),
    ("x / on (a) y > 1", "{{ $labels.b }}", True),
    ("x > on (a) group_left () y", "{{ $labels.b }}", False),
    ("sum by (a) (x) > 1 and on (a) y", "{{ $labels.b }}", True),
    ("sum by (a) (x) or sum by (b) (x)", "{{ $labels.b }}", False),
    ('label_replace(sum by (a) (x), "b", "$1", "a", "(.*)") > 1', "{{ $labels.b }}", False),
    ('count_values("b", x) > 1', "{{ $labels.b }}", False),
    ("topk(3, x) > 1", "{{ $labels.b }}", False),
    ('absent(up{b="c", a=~"d"})', "{{ $labels.b }}", False),
    ("vector(1)", "{{ $labels.b }}", True),
    ("sum(x) > 1", "{{ range query \"up\" }}{{ .Labels.b }}{{ end }}", False),
    ("sum(x) > 1", "no template: $labels.b", False),
])  # fmt: skip
def test_a_label_in_a_text_is_followed_through_the_expression(expr: str, text: str, empty: bool) -> None:
    assert ("alert/label-aggregated-away" in ids(expr, annotations={"summary": text})) is empty


def test_a_label_is_followed_through_recorded_series() -> None:
    groups = [{"name": "g", "rules": [
        {"record": "s:x:sum", "expr": "sum by (service, pod) (x)", "labels": {"tier": "gold"}},
        {"record": "s:y:sum", "expr": "sum by (service) (s:x:sum)"},
        {"alert": "A", "expr": "s:x:sum > 1", "annotations": {"a": "{{ $labels.pod }} {{ $labels.tier }}"}},
        {"alert": "B", "expr": "s:y:sum > 1", "annotations": {"a": "{{ $labels.pod }}"}},
    ]}]  # fmt: skip
    found = lint([Document("rules", Located({"groups": groups}, "r.yml"), "")], AROUND)
    assert [(finding.check, finding.what) for finding in found] == [
        ("alert/label-aggregated-away",
         "annotations.a is empty where it says pod: the expression does not carry that label")]  # fmt: skip


def test_an_operators_rules_are_read_like_prometheus_own() -> None:
    rule = {"alert": "A", "expr": "rate(x[1s]) > 1"}
    data = {"kind": "PrometheusRule", "spec": {"groups": [{"name": "g", "rules": [rule]}]}}
    found = lint([Document("operator-rules", Located(data, "r.yml"), "")], AROUND)
    assert [finding.check for finding in found] == ["promql/rate-window"]


def test_a_job_with_its_own_interval_asks_for_windows_of_its_own() -> None:
    around = Surroundings(scrape_interval=15, job_intervals={"slow": 60.0})
    assert ids('rate(x_total{job="slow"}[2m]) > 1', around=around) == {"promql/rate-window"}
    assert ids('rate(x_total{job="quick"}[2m]) > 1', around=around) == set()


def test_variables_of_grafana_are_replaced_before_parsing() -> None:
    text = 'rate(x{a=~"$a", b="${b:regex}", c="[[c]]"}[$__rate_interval]) > $threshold'
    with pytest.raises(ValueError, match="unexpected"):
        parse(text)
    replaced = without_variables(text.replace("$threshold", "1"))
    assert replaced == 'rate(x{a=~"x", b="x", c="x"}[5m]) > 1'
    assert "le" in labels(parse(replaced), {})


ENGINES = """\
version: 1
stack: k3
services:
  - {name: old, engine: {name: vllm-ascend, version: "0.9.1"}, targets: ["10.0.0.1:8000"]}
  - {name: new, engine: {name: vllm, version: "0.33"}, targets: ["10.0.0.2:8000"]}
"""


@pytest.mark.parametrize(("expr", "with_configuration", "without"), [
    ("vllm:num_requests_swapped > 1", True, False),
    ("vllm:kv_cache_usage > 1", True, True),
    ("rate(vllm_num_requests_swapped[5m]) > 1", True, False),
    ("vllm:gpu_cache_usage_perc > 0.9", False, False),
    ("sglang:num_prefill_infight_queue_reqs > 1", False, False),
    ("vllm:kv_cache_usage_perc > 0.9 or vllm:num_requests_swapped > 1", False, False),
    ('{__name__=~"vllm[:_]kv_cache_usage_perc"} > 0.9', False, False),
    ("vllm_expert_load_variance > 1", False, False),
    ("http_requests > 1", False, False),
])  # fmt: skip
def test_a_metric_is_unknown_where_no_version_that_runs_has_it(
    expr: str, with_configuration: bool, without: bool
) -> None:
    catalogue = load_catalogue()
    configured = surroundings(catalogue, loads(ENGINES).config)
    assert ("promql/unknown-metric" in ids(expr, around=configured)) is with_configuration
    assert ("promql/unknown-metric" in ids(expr, around=surroundings(catalogue, None))) is without


@pytest.mark.parametrize(("selected", "told"), [
    ('service="a"', False), ('service=~"a|c"', False), ('service!="b"', False), ('service="b"', True), ("", True),
])  # fmt: skip
def test_reservations_are_those_of_the_services_that_a_rule_selects(selected: str, told: bool) -> None:
    around = Surroundings(reserved=0.97, reserved_by={"a": 0.5, "b": 0.97, "c": 0.0})
    found = ids(f"k3:accelerator_memory_usage:ratio{{{selected}}} > 0.92", around=around)
    assert ("promql/memory-reserved" in found) is told


def test_a_variance_may_be_above_one() -> None:
    around = surroundings(load_catalogue(), None)
    assert "promql/percent-of-share" not in ids("k3:expert_load_variance:ratio > 5", around=around)
    assert "promql/percent-of-share" in ids("k3:kv_cache_usage:ratio > 5", around=around)
