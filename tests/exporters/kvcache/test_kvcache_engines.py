from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from k3observe.exporters.exposition import Reader, help_of
from k3observe.exporters.kvcache.engines import NAMES, EngineReading, EngineReadings, normalise

K3 = "moonshotai/Kimi-K3"


def read(body: bytes) -> EngineReadings:
    return normalise(Reader(NAMES).read(body).samples, partial(help_of, body))


@pytest.mark.parametrize(("sample", "readings"), [
    ("vllm-0.33.0.prom", [EngineReading(K3, "0", 0.663665, 12611808, (("device", 5981888),))]),
    ("vllm-0.33.0-served.prom", [EngineReading(K3, "0", 0.663665, 12611808, (("device", 5981888),))]),
    ("vllm-0.10.2.prom", [EngineReading(K3, "0", 0.573357, 14652416, (("device", 7285760),)),
                          EngineReading(K3, "1", 0.559065, 12244368, (("device", 5541632),))]),
    ("vllm-0.9.2-dp2.prom", [EngineReading(K3, "1", 0.559065, 12244368, (("device", 5541632),))]),
    ("vllm-0.8.5.prom", [EngineReading(K3, "0", 0.606913, 13494944, (("device", 6499968),), 64)]),
    ("vllm-0.6.6-v0.prom", [EngineReading("moonshotai/Kimi-K2-Instruct", "0", 0.6308774230664794)]),
    ("sglang-0.4.10.prom", [EngineReading(K3, "0", 0.579, 12201296, (("total", 3801078),))]),
    ("sglang-0.5.10.prom", [EngineReading(K3, "0", 0.5039, 12201296, (("device", 3801078),))]),
    ("sglang-0.5.23.prom", [EngineReading(K3, "0", 0.5039, 3547937, (("device", 2331425),))]),
    ("sglang-0.5.23-dpattn8x2-eplb.prom", [EngineReading(K3, "0", 0.8689, 3405392, (("device", 2106960),)),
                                           EngineReading(K3, "1", 0.526, 3385734, (("device", 2201990),))]),
    ("mindie-documented.prom", [EngineReading("kimi-k3", "0", 0.93, 81000, (("device", 49410),))]),
])
def test_engines_are_read_as_they_expose_themselves(shared: Path, sample: str, readings: list[EngineReading]) -> None:
    assert list(read((shared / "samples/engines" / sample).read_bytes()).engines) == readings


def test_every_engine_of_the_samples_has_a_usage_in_both_spellings(shared: Path) -> None:
    folder = shared / "samples/engines"
    for name, expected in json.loads((folder / "expected.json").read_text()).items():
        body = (folder / name).read_bytes()
        found = read(body)
        assert found.engines, name
        assert found.implausible == 0
        assert all((e.usage is not None) == (expected["signals"]["kv_cache_usage"] is not None) for e in found.engines)
        underscored = body.replace(b"vllm:", b"vllm_").replace(b"sglang:", b"sglang_")
        assert read(underscored) == found, name


def vllm(*lines: str) -> tuple[EngineReading, ...]:
    return read("".join(f"vllm:{line}\n" for line in lines).encode()).engines


QUERIES = 'prefix_cache_queries_total{engine="0",model_name="m"} 100'
HITS = 'prefix_cache_hits_total{engine="0",model_name="m"} 60'


def test_hits_of_a_kv_connector_are_a_tier_and_its_lookups_are_not_counted_twice() -> None:
    assert vllm(QUERIES, HITS, 'external_prefix_cache_queries_total{engine="0",model_name="m"} 40',
                'external_prefix_cache_hits_total{engine="0",model_name="m"} 15') == (
        EngineReading("m", "0", None, 100, (("device", 60), ("external", 15))),)


def test_hits_by_source_replace_the_sum_of_the_connector() -> None:
    source = 'prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="%s"} %d'
    assert vllm(QUERIES, HITS, 'external_prefix_cache_hits_total{engine="0",model_name="m"} 15',
                source % ("device", 59), source % ("host", 5), source % ("p2p", 0),
                source % ("external_unspecified", 10)) == (
        EngineReading("m", "0", None, 100, (("device", 60), ("external", 10), ("host", 5))),)


def test_with_local_caching_off_the_lookups_are_those_of_the_connector() -> None:
    assert vllm('prefix_cache_queries_total{engine="0",model_name="m"} 0',
                'prefix_cache_hits_total{engine="0",model_name="m"} 0',
                'external_prefix_cache_queries_total{engine="0",model_name="m"} 80',
                'external_prefix_cache_hits_total{engine="0",model_name="m"} 20') == (
        EngineReading("m", "0", None, 80, (("device", 0), ("external", 20))),)


def test_blocks_become_tokens_where_the_block_size_is_known_and_have_no_unit_else() -> None:
    head = ("# HELP vllm:gpu_prefix_cache_queries_total In terms of number of queried blocks.\n"
            "vllm:gpu_prefix_cache_queries_total 10\nvllm:gpu_prefix_cache_hits_total 5\n")
    for line, unit in (('vllm:cache_config_info{block_size="16"} 1\n', 16.0), ("", None),
                       ('vllm:cache_config_info{block_size="None"} 1\n', None)):
        assert read((head + line).encode()).engines == (EngineReading("", "0", None, 10, (("device", 5),), unit),)
    assert read(head.replace("blocks", "tokens").encode()).engines[0].unit == 1


def test_sglang_parts_by_priority_are_not_the_total_and_silent_ranks_not_a_reading() -> None:
    series = ((0, "", 0.6), (0, "1", 0.9), (1, "", 0.0), (2, "", "NaN"), (3, "", -1))
    body = "".join(f'sglang:token_usage{{model_name="m",tp_rank="{rank}",priority="{priority}"}} {value}\n'
                   for rank, priority, value in series)
    readings = read(body.encode())
    assert readings.engines == (EngineReading("m", "0", 0.6),)
    assert readings.implausible == 0


def test_sglang_without_a_first_hit_has_no_hits_rather_than_no_series() -> None:
    body = ('sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 5\n'
            'sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 4\n'
            'sglang:token_usage{model_name="m",dp_rank="0"} 0.5\nsglang:token_usage{model_name="m",dp_rank="1"} 0.6\n')
    newer = body + 'sglang:inter_token_latency_seconds_count{model_name="m"} 3\n'
    assert read(newer.encode()).engines == (
        EngineReading("m", "", None, 9, (("total", 0),)), EngineReading("m", "0", 0.5), EngineReading("m", "1", 0.6))
    assert read(body.encode()).engines[0].hits == ()


def test_values_that_make_no_sense_are_no_reading_and_are_counted() -> None:
    body = ('vllm:kv_cache_usage_perc{engine="0"} 30\nvllm:kv_cache_usage_perc{engine="1"} NaN\n'
            'vllm:kv_cache_usage_perc{engine="2"} 0.5\nvllm:prefix_cache_hits_total{engine="2"} -1\n')
    readings = read(body.encode())
    assert readings == EngineReadings((EngineReading("", "2", 0.5),), 3, None)


def test_a_cache_that_is_full_by_rounding_is_full() -> None:
    assert read(b'vllm:kv_cache_usage_perc{engine="0"} 1.0000000000000002\n').engines[0].usage == 1.0


def test_another_program_has_no_readings() -> None:
    assert read(b"node_load1 0.5\nvllm:num_requests_running 3\n") == EngineReadings((), 0, None)


def test_the_number_of_engines_is_bounded() -> None:
    body = "".join(f'vllm:kv_cache_usage_perc{{engine="{n}"}} 0.5\n' for n in range(400)).encode()
    readings = read(body)
    assert (len(readings.engines), readings.implausible) == (256, 144)


def test_the_number_of_tiers_and_the_length_of_names_are_bounded() -> None:
    by_source = "vllm:prompt_tokens_cached_by_source_total"
    body = (f'vllm:prefix_cache_queries_total{{model_name="{"m" * 9000}",engine="0"}} 90\n'
            f'vllm:prefix_cache_hits_total{{model_name="{"m" * 9000}",engine="0"}} 10\n'
            f'vllm:kv_cache_usage_perc{{model_name="{"m" * 20_000}",engine="0"}} 0.5\n')
    body += "".join(f'{by_source}{{model_name="{"m" * 9000}",engine="0",source="s{i:03}"}} 1\n' for i in range(500))
    (reading,) = read(body.encode()).engines
    assert (reading.model_name, reading.usage) == ("m" * 256, None)
    assert reading.hits == (("device", 10), ("other", 494), *((f"s{i:03}", 1) for i in range(6)))
