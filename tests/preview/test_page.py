"""The page holds everything it needs, and nothing that a label says can break out of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3observe.cli.preview import _span
from k3observe.config.values import Duration
from k3observe.preview.evaluate import Result, _cells
from k3observe.preview.page import embedded, page
from k3observe.preview.prometheus import Prometheus, Series, Span
from k3observe.preview.tables import table
from k3observe.preview.variables import choose, expand

SPAN = Span(1_000_000.0, 1_000_060.0, 15.0)


def preview(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from k3observe.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, "preview", *arguments], cwd=folder, capture_output=True,
                          text=True)


def test_the_page_says_that_it_is_a_preview_and_not_grafana() -> None:
    for language, words in (("en", "A preview, not Grafana"), ("zh-CN", "这是预览，不是 Grafana")):
        assert words in page(Result([], []), SPAN, "here", language)


def test_the_page_loads_nothing() -> None:
    text = page(Result([], []), SPAN, "here", "en")
    assert "default-src 'none'" in text
    elements = re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", text, flags=re.S)
    assert elements.count("<script") > 4
    assert not re.search(r"\b(src|href)=", elements)


def test_a_label_cannot_end_the_script_that_holds_it() -> None:
    data = {"name": "</script><script>alert(1)</script>\u2028"}
    assert "<" not in embedded(data)
    assert json.loads(embedded(data)) == data


def test_the_chart_library_has_its_licence_beside_it() -> None:
    import k3observe.preview

    folder = Path(k3observe.preview.__file__).parent
    assert "Apache License" in (folder / "echarts-LICENSE.txt").read_text()
    assert (folder / "echarts.min.js").stat().st_size > 500_000


def test_cumulative_buckets_become_cells() -> None:
    rows = [{"name": "+Inf", "values": [5, 9.0]}, {"name": "0.5", "values": [1, None]}, {"name": "1.0", "values": [3,
                                                                                                                   4]}]
    cells: list[Any] = [(row["name"], row["values"]) for row in _cells(rows)]
    assert cells == [("0.5", [1, None]), ("1.0", [2, 4]), ("+Inf", [2, 5])]


def test_a_table_merges_its_queries_by_their_labels() -> None:
    panel = {
        "targets": [{"refId": "A"}, {"refId": "B"}],
        "transformations": [{"id": "merge"}, {"id": "organize", "options": {
            "excludeByName": {"Time": True, "stack": True}, "indexByName": {"service": 0, "Value #B": 1, "Value #A": 2},
            "renameByName": {"service": "Service", "Value #A": "Engines", "Value #B": "Load"}}}],
        "fieldConfig": {"overrides": [{"matcher": {"options": "Load"}, "properties": [
            {"id": "unit", "value": "percentunit"}]}]},
        "options": {"sortBy": [{"displayName": "Load", "desc": True}]},
    }  # fmt: skip
    first = [Series({"service": "a", "stack": "s"}, (2.0,)), Series({"service": "b", "stack": "s"}, (3.0,))]
    second = [Series({"service": "b", "stack": "s"}, (0.5,)), Series({"service": "a", "stack": "s"}, (0.7,))]
    found = table(panel, [first, second])
    assert [column["title"] for column in found["columns"]] == ["Service", "Load", "Engines"]
    assert found["rows"] == [["a", 0.7, 2.0], ["b", 0.5, 3.0]]
    assert found["columns"][1]["unit"] == "percentunit"


def test_variables_are_expanded_in_all_their_spellings() -> None:
    assert expand('x{a=~"$service",b="${service:regex}"}[$__rate_interval] $other', {
        "service": ".+", "__rate_interval": "60s"}) == 'x{a=~".+",b=".+"}[60s] $other'  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(last=st.integers(1, 40 * 86_400), milliseconds=st.integers(1, 300_000))
def test_over_any_range_the_intervals_are_durations_of_promql_and_none_is_below_the_scrape_interval(
    last: int, milliseconds: int
) -> None:
    scrape, span = milliseconds / 1000, _span(last, milliseconds / 1000)
    values, _ = choose({"templating": {"list": []}}, Prometheus("http://127.0.0.1:1"), span, scrape)
    seconds = {name: Duration.parse(text).seconds for name, text in values.items()}
    assert all(re.fullmatch(r"[1-9]\d*m?s", text) for text in values.values())
    assert span.step - 1e-3 <= seconds["__interval"] < span.step + 1
    assert seconds["__interval"] >= scrape
    assert seconds["__rate_interval"] >= 4 * scrape


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "needs one of --prometheus URL and --demo"),
    (["--demo", "--prometheus", "http://127.0.0.1:1"], "needs one of"),
    (["--prometheus", "http://127.0.0.1:1"], "--prometheus: no Prometheus answers: "),
    (["--prometheus", "ftp://x"], "use http://HOST:9090"),
    (["--prometheus", "http://127.0.0.1:1", "--last", "soon"], "--last: "),
    (["--prometheus", "http://127.0.0.1:1", "-f", "missing.yaml"], "missing.yaml"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_without_a_traceback(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "k3observe.yaml").write_text(
        'version: 1\nstack: s\nservices: [{name: s, engine: {name: vllm, version: "0.33"}, targets: ["h:8000"]}]\n'
    )
    done = preview(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "preview.html").exists()
