"""Engine and version from what is exposed. Dates come from names and labels: two releases alike give a range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3observe.catalogue import Version, load
from k3observe.live.detect import Identity, identify, wanted_names
from k3observe.live.exposition import parse
from k3observe.live.exposition_source import read

from .synthetic import exposition

CATALOGUE = load()
WANTED = wanted_names(CATALOGUE).__contains__


def identity(text: str) -> Identity:
    found = identify(parse(iter([text.encode()]), "synthetic", WANTED), CATALOGUE)
    assert found is not None
    return found


def holds(found: Identity, version: str) -> bool:
    assert found.oldest is not None
    assert found.newest is not None
    return found.oldest <= Version.parse(version) <= found.newest


def test_every_capture_is_recognised(shared: Path) -> None:
    folder = shared / "samples/engines"
    for name, known in json.loads((folder / "expected.json").read_text("utf-8")).items():
        found = identify(read(str(folder / name), WANTED), CATALOGUE)
        assert found is not None
        assert found.source == known["engine"], name
        assert holds(found, known["version"]), (name, str(found.oldest), str(found.newest))
    found = identify(read(str(folder / "mindie-documented.prom"), WANTED), CATALOGUE)
    assert found is not None
    assert (found.source, found.newest) == ("mindie", None)


@pytest.mark.parametrize(
    ("engine", "release", "oldest", "newest"),
    [
        ("vllm", "0.6.3", "0.5.5", "0.6.6"),
        ("vllm", "0.9.0", "0.9.0", "0.9.0"),
        ("vllm", "0.11.0", "0.11.0", "0.11.0"),
        ("vllm", "0.13.0", "0.13.0", "0.14.1"),
        ("vllm", "0.16.0", "0.16.0", "0.16.0"),
        ("vllm", "0.18.1", "0.18.1", "0.18.1"),
        ("vllm", "0.19.1", "0.19.1", "0.19.1"),
        ("vllm", "0.22.1", "0.20.2", "0.22.1"),
        ("vllm", "0.24.0", "0.24.0", "0.24.0"),
        ("vllm", "0.26.0", "0.26.0", "0.26.0"),
        ("vllm", "0.28.0", "0.28.0", "0.28.0"),
        ("vllm", "0.30.0", "0.30.0", "0.30.0"),
        ("vllm", "0.31.0", "0.31.0", "0.31.0"),
        ("sglang", "0.5.2", "0.5.2", "0.5.3"),
        ("sglang", "0.5.5", "0.5.5", "0.5.5"),
        ("sglang", "0.5.12", "0.5.12", "0.5.15"),
        ("sglang", "0.5.17", "0.5.17", "0.5.17"),
        ("sglang", "0.5.20", "0.5.18", "0.5.20"),
    ],
)
def test_releases_between_the_captures_fall_into_a_narrow_range(
    engine: str, release: str, oldest: str, newest: str
) -> None:
    found = identity(exposition(engine, release))
    assert found.source == engine
    assert holds(found, release), (str(found.oldest), str(found.newest))
    assert found.oldest is not None
    assert found.newest is not None
    assert found.oldest >= Version.parse(oldest), str(found.oldest)
    assert found.newest <= Version.parse(newest), str(found.newest)


def test_an_idle_sglang_is_dated_by_its_gauges_alone() -> None:
    assert holds(identity(exposition("sglang", "0.5.10", idle=True)), "0.5.10")


def test_the_rust_frontend_is_told_from_python_and_dated_without_what_it_leaves_out() -> None:
    found = identity(exposition("vllm", "0.33.0", rust=True))
    assert found.rust_frontend
    assert holds(found, "0.33.0")
    assert not identity(exposition("vllm", "0.33.0")).rust_frontend


def test_a_connector_narrows_the_range() -> None:
    found = identity(exposition("vllm", "0.28.0", also=("vllm:kv_offload_tiering_chunk_hits_total",
                                                        "vllm:kv_offload_load_bytes_total")))  # fmt: skip
    assert found.oldest is not None
    assert found.oldest >= Version.parse("0.24.0")


def test_underscores_are_the_same_names() -> None:
    text = exposition("vllm", "0.16.0").replace("vllm:", "vllm_")
    assert identity(text) == identity(exposition("vllm", "0.16.0"))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("k3_accelerators_visible 8\n", "sidecar"),
        ("DCGM_FI_DEV_FB_USED 1\nDCGM_FI_DEV_FB_FREE 1\nDCGM_FI_DEV_GPU_TEMP 40\n", "dcgm"),
        ("npu_chip_info_power 1\nnpu_chip_info_temperature 40\nmachine_npu_nums 16\n", "npu-exporter"),
        ("llm_request_total 1\nllm_active_sequences 2\nllm_gpu_memory_used_bytes 3\n", "generic"),
    ],
)
def test_exporters_are_recognised(text: str, source: str) -> None:
    assert identity(text).source == source


def test_a_stranger_is_not_taken_for_an_engine() -> None:
    text = 'go_goroutines 8\nhttp_requests_total{status="5xx"} 1\nprompt_tokens_total 3\n'
    assert identify(parse(iter([text.encode()]), "x", WANTED), CATALOGUE) is None
