from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from k3observe.exporters.exposition import Reader, Sample, help_of

READER = Reader(["vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total", "plain", "plain_more"])


def read(text: str) -> list[Sample]:
    reading = READER.read(text.encode())
    assert reading.malformed == 0
    return list(reading.samples)


@pytest.mark.parametrize(("line", "labels", "value"), [
    ("plain 1", {}, 1), ("plain{} 1", {}, 1), ("plain\t{ } \t1.5e3", {}, 1500), ("  plain 1", {}, 1),
    ('plain{a="b",} 1', {"a": "b"}, 1), ('plain { a = "b" , c="d" } 1', {"a": "b", "c": "d"}, 1),
    ('plain{a="x\\"y\\\\z\\nw\\t"} 1', {"a": 'x"y\\z\nw\\t'}, 1),
    ('plain{a="}{,= # 中\u2028\u0085\x0c"} 1', {"a": "}{,= # 中\u2028\u0085\x0c"}, 1),
    ("plain +Inf", {}, math.inf), ("plain -Inf", {}, -math.inf), ("plain -.5", {}, -0.5), ("plain 1\r", {}, 1),
    ("plain 1 1700000000000", {}, 1), ("plain 1 1700000000.123", {}, 1),
    ('plain{a="b"} 7 # {trace_id="4bf9"} 0.67 1.7e9', {"a": "b"}, 7), ('plain 7 1.7e9 # {} 1', {}, 7),
    ('{"plain"} 1', {}, 1), ('{"plain",a="b"} 1', {"a": "b"}, 1), ('{ "plain" , "ä.b"="c" } 1', {"ä.b": "c"}, 1),
])
def test_a_line_in_any_form_is_read(line: str, labels: dict[str, str], value: float) -> None:
    assert read(f"{line}\n") == [Sample("plain", labels, value)]
    assert read(f"# HELP plain plain 3\nother 1\n{line}\nplainer 2\n# EOF\n") == [Sample("plain", labels, value)]


def test_nan_is_a_value() -> None:
    assert math.isnan(read("plain NaN\n")[0].value)


@pytest.mark.parametrize("line", [
    "plain", "plain ", "plain{} ", 'plain{a="b} 1', "plain{a=b} 1", 'plain{a="b"', 'plain{a="b" c="d"} 1', "plain x",
    'plain{a="b",a="c"} 1', "plain 1_000", "plain 0x10", "plain 1.2.3", "plain 1 2 3", "plain --1", "plain 1x",
    'plain{,a="b"} 1', 'plain{"a"} 1', 'plain{a="\udcff"} 1', 'plain{a="b"}} 1', "plain{{} 1", "plain 1 x",
])
def test_a_line_that_is_no_sample_is_skipped_and_counted(line: str) -> None:
    body = f"plain 1\n{line}\nplain_more 2\n".encode("utf-8", "surrogateescape")
    reading = READER.read(body)
    assert [sample.name for sample in reading.samples] == ["plain", "plain_more"]
    assert reading.malformed == (0 if line == "plain" else 1)


def test_a_last_line_that_may_be_cut_short_is_not_believed() -> None:
    reading = READER.read(b'plain_more 1\nplain{a="b"} 0.9')
    assert (reading.samples, reading.malformed) == ((Sample("plain_more", {}, 1),), 1)
    assert READER.read(b"plain 0.").malformed == 1
    assert READER.read(b"") == ((), 0)


def test_both_spellings_are_found_under_the_wanted_name() -> None:
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm_kv_cache_usage_perc{engine="1"} 0.6\nvllm:kv_cache 3\n'
    assert read(text) == [Sample("vllm:kv_cache_usage_perc", {"engine": "0"}, 0.5),
                          Sample("vllm:kv_cache_usage_perc", {"engine": "1"}, 0.6)]


def test_the_help_of_a_family_is_found_in_either_spelling() -> None:
    body = b"# HELP vllm_x_total In blocks.\n# TYPE vllm_x_total counter\nvllm_x_total 1\n"
    assert help_of(body, "vllm:x_total") == "In blocks."
    assert help_of(body, "vllm:y_total") is None


def test_the_number_of_samples_is_bounded() -> None:
    reading = Reader(["plain"], max_samples=10).read(b"plain 1\n" * 25)
    assert (len(reading.samples), reading.malformed) == (10, 15)


NAMES = st.sampled_from(["vllm:kv_cache_usage_perc", "plain", "plain_more", "other", "plainer", "vllm:kv_cache"])
LABELS = st.dictionaries(st.sampled_from(["a", "engine", "model_name"]),
                         st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=3)
VALUES = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53).map(float)


@given(st.lists(st.tuples(NAMES, st.lists(st.tuples(LABELS, VALUES, st.none() | st.integers(0, 2**40)), max_size=4)),
                max_size=6, unique_by=lambda family: family[0]))
def test_what_prometheus_client_writes_is_read_as_its_own_parser_reads_it(
    families: list[tuple[str, list[tuple[dict[str, str], float, int | None]]]],
) -> None:
    class Registry:
        def collect(self) -> list[Metric]:
            metrics: list[Metric] = []
            for name, samples in families:
                metric = GaugeMetricFamily(name, 'He said "plain 1"\nplain 2\\')
                for labels, value, timestamp in samples:
                    metric.add_sample(name, labels, value, timestamp)
                metrics.append(metric)
            hits = CounterMetricFamily("vllm:prefix_cache_hits", "Hits.")
            hits.add_sample("vllm:prefix_cache_hits_total", {"engine": "0"}, 7.0)
            return [*metrics, hits]

    wanted = {"vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total", "plain", "plain_more"}
    spelled = {name.replace(":", "_"): name for name in wanted}
    for body in (generate_latest(Registry()), choose_encoder("text/plain;version=1.0.0;escaping=allow-utf-8")[0](
            Registry())):
        # The parser strips its lines and splits them at every kind of line end; those characters are tested above.
        if re.search("[\x0b\x0c\r\x1c-\x1e\x85\u2028\u2029]", body.decode()):
            continue
        right = [(spelled[s.name.replace(":", "_")], s.labels, float(s.value))
                 for family in text_string_to_metric_families(body.decode()) for s in family.samples
                 if s.name.replace(":", "_") in spelled]
        assert [tuple(sample) for sample in read(body.decode())] == right


@given(st.lists(st.sampled_from(
    ["plain", "{", "}", '"', "a=", "\\", ",", " ", "1", "\n", "#", "NaN", "\xff", "\0", "\r"]), max_size=60))
def test_no_body_makes_it_fail(pieces: list[str]) -> None:
    READER.read("".join(pieces).encode("latin-1"))


def test_a_hostile_line_costs_no_more_than_its_length() -> None:
    for line in (b'plain{a="' + b"\\" * 2_000_001 + b'"} 1\n', b"plain{" + b'a="b",' * 300_000 + b"\n",
                 b"plain " + b"1" * 3_000_000 + b"x\n", b"plain 1" + b" " * 3_000_000 + b"x\n", b"\n" * 3_000_000,
                 b"plain{" + b" " * 2_000_000 + b"\n"):
        assert READER.read(line).samples == ()
