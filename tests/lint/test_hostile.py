"""Whatever stands in a file, checking it ends quickly with findings and never with an accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3observe.config.source import Located
from k3observe.lint.folder import Document, documents
from k3observe.lint.run import lint
from k3observe.lint.surroundings import Surroundings

HOSTILE = {
    "deep.yml": "groups: " + "[" * 5000,
    "aliases.yml": "groups:\n- &g {name: g, rules: [&r {alert: A, expr: up}, *r, *r]}\n- *g\n- *g\n",
    "recursive.yml": "groups: &a [*a]\n",
    "nested.yml": "groups: [{name: g, rules: [{alert: A, expr: '" + "(" * 1500 + "x" + ")" * 1500 + "'}]}]",
    "unary.yml": "groups: [{name: g, rules: [{alert: A, expr: '" + "-" * 3000 + "x'}]}]",
    "long.yml": "groups: [{name: g, rules: [{alert: A, expr: '" + "+".join(["x"] * 3000) + "'}]}]",
    "types.yml": "groups: [1, {rules: 3}, {rules: [4, {alert: [], expr: {}}, {alert: A, expr: 1, labels: 3}]}]",
    "null.yml": "groups:\nscrape_configs:\nroute:\nreceivers:\n",
    "scrape.yml": "scrape_configs: [1, {static_configs: [2, {targets: [3, 'http://[::1']}], relabel_configs: 5}]",
    "alertmanager.yml": "route: {routes: [{routes: 3}, 4]}\nreceivers: [5, {name: 6}]\n",
    "bomb.yml": "x0: &x0 [a, a]\n" + "".join(
        f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 12)) + "route: *x11\nreceivers: *x11\n",
    "regex.yml": "groups: [{name: g, rules: [{alert: A, expr: 'x{le=~\"(1+)+$\"} > 1'}]}]",
    "dashboard.json": '{"panels": [' * 2000,
    "odd.json": '{"panels": [1, null], "title": 3, "templating": {"list": [1, {"type": "query", "query": 4}]}}',
    "\u540d.yml": "groups: [{name: g, rules: [{record: a, expr: \"x{y='\u540d'}\"}]}]",
}



@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_survived(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(HOSTILE[name])
    lint(list(documents(tmp_path)), Surroundings())


SELECTORS = st.sampled_from(["x", "x_total", 'x_bucket{le="1"}', '{a="b"}', '{__name__=~"vllm[:_]x"}', "x offset 5m",
                             "vllm:kv_cache_usage_perc", "k3:r:rate5m"])  # fmt: skip


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ["+", "-", "*", "/", "^", ">", "<", ">= bool", "==", "and", "or", "unless", "/ on (a)",
                 "> on (a) group_left (b)", "- ignoring (a)"]  # fmt: skip
    wraps = ["({})", "-{}", "sum({})", "avg by (a, le) ({})", "max without (a) ({})", "topk(2, {})",
             'count_values("v", {})', "stdvar by (a) ({})", "histogram_quantile(0.9, {})", "absent({})",
             'label_replace({}, "a", "b", "c", "d")', "max_over_time({}[5m:1m])", "clamp_min({}, 1)"]  # fmt: skip
    return (
        st.tuples(inner, st.sampled_from(operators), inner).map(lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})")
        | st.tuples(st.sampled_from(wraps), inner).map(lambda parts: parts[0].format(parts[1]))
    )


EXPRESSIONS = st.recursive(
    SELECTORS | st.sampled_from(["rate(x_total[5m])", "increase(x_errors_total[1m])", "vector(0)", "0.5", "1"]),
    _larger, max_leaves=6)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EXPRESSIONS)
def test_any_expression_is_survived(text: str) -> None:
    rules = [{"alert": "A", "expr": text, "annotations": {"a": "{{ $labels.a }}"}}, {"record": "r", "expr": text}]
    located = Located({"groups": [{"name": "g", "rules": rules}]}, "r.yml")
    lint([Document("rules", located, "")], Surroundings(jobs=frozenset({"a"}), shares=frozenset({"x"})))
