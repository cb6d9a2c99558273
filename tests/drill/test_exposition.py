from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from k3observe.drill.exposition import ExpositionError, Family, Series, parse, write

CAPTURE = """\
# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\" \\\\ } #"} 3.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0"} 17.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0"} 1.7e+09
# TYPE vllm:ttft_seconds histogram
vllm:ttft_seconds_bucket{le="0.5"} 1.0
vllm:ttft_seconds_bucket{le="+Inf"} 2.0
vllm:ttft_seconds_count 2.0
vllm:ttft_seconds_sum 3.25
"""


def samples(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], str]]:
    found = (sample for family in families for sample in family.samples)
    return {(s.name, tuple(sorted(s.labels.items())), repr(float(s.value))) for s in found}


def test_every_captured_engine_is_read_as_the_client_library_reads_it(shared: Path) -> None:
    captures = sorted((shared / "samples" / "engines").glob("*.prom"))
    assert captures
    for capture in captures:
        text = capture.read_text()
        ours = write(parse(text, capture.name).families, "text", "colon")
        assert samples(read_text(ours)) == samples(read_text(text)), capture.name


def test_openmetrics_of_every_captured_engine_is_valid_and_loses_only_birth_times(shared: Path) -> None:
    for capture in sorted((shared / "samples" / "engines").glob("*.prom")):
        text = capture.read_text()
        written = write(parse(text, capture.name).families, "openmetrics", "colon")
        kept = {s for s in samples(read_text(text)) if not s[0].endswith("_created")}
        assert samples(read_openmetrics(written)) == kept, capture.name


def test_both_formats_lead_to_the_same_series() -> None:
    text = parse(CAPTURE)
    openmetrics = parse(write(text.families, "openmetrics", "colon"))
    assert [f for f in text.families if not f.name.endswith("_created")] == list(openmetrics.families)


def test_text_is_written_as_it_was_captured() -> None:
    assert write(parse(CAPTURE).families, "text", "colon") == CAPTURE.replace("1.7e+09", "1700000000.0")


def test_underscores_replace_the_colons_of_names_and_of_nothing_else() -> None:
    capture = '# HELP a:b Why: because.\n# TYPE a:b gauge\na:b{url="http://x"} 1.0\n'
    expected = '# HELP a_b Why: because.\n# TYPE a_b gauge\na_b{url="http://x"} 1.0\n'
    assert write(parse(capture).families, "text", "underscore") == expected


def test_timestamps_and_exemplars_of_the_capture_are_left_out() -> None:
    capture = '# TYPE a counter\na_total{x="1"} 5.0 1700000000.5 # {trace="z"} 1.0\n# EOF\n'
    assert write(parse(capture).families, "text", "colon") == '# TYPE a_total counter\na_total{x="1"} 5.0\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# TYPE a gauge\n<html>\n", r"x\.prom:2: not a sample .*: <html>"),
        ("a one\n", r"x\.prom:1: not a number: one"),
        ('a{b="1" c} 1\n', r'x\.prom:1: not a label .*: c'),
        ('{"a.b"} 1\n', r"x\.prom:1: not a sample"),
    ],
)
def test_a_line_that_is_none_is_named(text: str, message: str) -> None:
    with pytest.raises(ExpositionError, match=message):
        parse(text, "x.prom")


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), st.text(max_size=20), max_size=4), st.floats())
def test_any_label_value_and_any_number_survives(labels: dict[str, str], value: float) -> None:
    labels = {name: re.sub(r"[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", "", text) for name, text in labels.items()}
    family = Family("a", "gauge", None, (Series("a", tuple(labels.items()), value),))
    (read,) = parse(write([family], "text", "colon")).families
    assert read.series[0].labels == family.series[0].labels
    assert repr(read.series[0].value) == repr(value)
