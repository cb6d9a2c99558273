from __future__ import annotations

from pathlib import Path

import pytest

from k3observe.catalogue import Catalogue, Entry, Gap, Version, load
from k3observe.catalogue.reading import read
from k3observe.config.errors import ConfigError
from k3observe.exporters import families

OWN_ENGINE = """
name: our-engine
title: Our engine
kind: engine
job: k3-engine
port: 9000
labels: {engine: rank, model_name: model}
signals:
  kv_cache_usage:
    - {metric: ours_cache_percent, scale: 0.01}
  requests_waiting:
    - {versions: ">=2", metric: ours_waiting, match: {state: queued}}
    - {versions: "<2", gap: {en: not counted before 2.0, zh-CN: 2.0 之前不统计}}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "ours.yaml"
    path.write_text(text, "utf-8")
    return path


def test_a_user_adds_an_engine_with_a_file(tmp_path: Path) -> None:
    catalogue = load([write(tmp_path, OWN_ENGINE)])
    entry = catalogue.entry("our-engine", "requests_waiting", Version.parse("2.1"))
    assert isinstance(entry, Entry)
    assert entry.metric == "ours_waiting"
    assert entry.evidence == "documentation"
    gap = catalogue.entry("our-engine", "requests_waiting", Version.parse("1.9"))
    assert isinstance(gap, Gap)
    assert gap.reason.get("zh-CN") == "2.0 之前不统计"
    assert isinstance(catalogue.entry("our-engine", "preemptions"), Gap)


def test_a_user_overrides_one_signal_of_ours_and_the_rest_stays(tmp_path: Path, catalogue: Catalogue) -> None:
    own = load([write(tmp_path, "name: vllm\nsignals: {kv_cache_usage: [{metric: 'vllm:my_usage'}]}\n")])
    entry = own.entry("vllm", "kv_cache_usage", Version.parse("0.8.5"))
    assert isinstance(entry, Entry)
    assert entry.metric == "vllm:my_usage"
    assert own.entry("vllm", "preemptions") == catalogue.entry("vllm", "preemptions")


def test_a_fork_extends_an_engine(tmp_path: Path) -> None:
    own = load([write(tmp_path, "name: our-vllm\nextends: vllm\n")])
    entry = own.entry("our-vllm", "kv_cache_usage", Version.parse("0.33"))
    assert isinstance(entry, Entry)
    assert entry.source == "our-vllm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nsignals:\n  kv_cache_usag: []\n", "ours.yaml:3: signals.kv_cache_usag: is no signal: "
         "did you mean 'kv_cache_usage'?"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {metrics: a}\n",
         "ours.yaml:4: signals.kv_cache_usage[0].metrics: is not known here: did you mean 'metric'?"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {versions: '>= 1'}\n",
         "ours.yaml:4: signals.kv_cache_usage[0]: needs either metric or terms"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {metric: a, versions: '~1'}\n",
         "ours.yaml:4: signals.kv_cache_usage[0].versions: not a version range: '~1'"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {metric: 'a b'}\n",
         "ours.yaml:4: signals.kv_cache_usage[0].metric: is no metric name: 'a b'"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {metric: a, scale: 0}\n",
         "ours.yaml:4: signals.kv_cache_usage[0].scale: must not be 0"),
        ("name: x\nsignals:\n  queue_time:\n    - {metric: a_milliseconds, scale: 0.001}\n",
         "ours.yaml:4: signals.queue_time[0].scale: cannot scale a histogram: its buckets keep the engine's unit"),
        ("name: x\nsignals:\n  kv_cache_usage:\n    - {metric: a, match: {l: '~('}}\n",
         "ours.yaml:4: signals.kv_cache_usage[0].match: l has no regular expression: '(':"),
        ("name: x\nsignals:\n  saturation:\n    - {metric: a}\n",
         "ours.yaml:3: signals.saturation: is computed from requests_running"),
        ("name: x\nextends: vlm\n", "ours.yaml:2: extends: names no source: 'vlm': did you mean 'vllm'?"),
        ("title: x\n", "ours.yaml:1: needs name"),
        ("name: x\nsignals:\n  time_to_first_token:\n    - {metric: a, buckets: [2, 1]}\n",
         "ours.yaml:4: signals.time_to_first_token[0].buckets: bounds must rise"),
        ("name: x\nport: 99999\n", "ours.yaml:2: port: is no port: 99999: 1 to 65535"),
        ("name: [\n", "ours.yaml:"),
        ("", "ours.yaml: is empty"),
        ("- a\n", "ours.yaml:1: should be a mapping"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_file_line_and_field(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load([write(tmp_path, text)])
    assert message in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load([tmp_path / "nowhere.yaml"])


def test_the_sidecar_is_catalogued_as_it_is_exposed(catalogue: Catalogue) -> None:
    exposed = {family.name: family for family in families.ALL}
    for entry in catalogue.sources["sidecar"].entries:
        signal = catalogue.signals[entry.signal]
        for term in entry.terms:
            family = exposed[term.name]
            assert family.kind == term.type
            read = {label.raw for label in {**entry.labels, **term.labels}.values() if label.raw}
            assert read <= set(family.labels), term.name
            for example in term.examples:
                assert set(example.labels) == set(family.labels), (term.name, example)
            own = {name for name in signal.labels if name != "instance"} - set(term.labels)
            assert own <= set(family.labels), (entry.signal, family.labels)


def test_a_flag_that_is_missing_makes_a_gap_that_names_it(catalogue: Catalogue) -> None:
    gap = catalogue.entry("vllm", "kv_cache_hits", Version.parse("0.33"), {"prefix_caching": False})
    assert isinstance(gap, Gap)
    assert gap.fix is not None
    assert gap.fix.en == "add --enable-prefix-caching"
    gap = catalogue.entry("sglang", "expert_balance", Version.parse("0.5.23"), {"balancedness_report": "off"})
    assert isinstance(gap, Gap)
    assert gap.fix is not None
    assert "--expert-balancedness-report-mode prometheus" in gap.fix.en
    assert isinstance(
        catalogue.entry("sglang", "expert_balance", Version.parse("0.5.23"), {"balancedness_report": "both"}), Entry
    )


def test_a_call_that_failed_is_no_npu_link_that_is_down(catalogue: Catalogue) -> None:
    entry = catalogue.entry("npu-exporter", "accelerator_link_up", None, {})
    assert isinstance(entry, Entry)
    raw = {"0": 1.0, "1": 0.0, "2": -1.0}
    found = read(catalogue.signals[entry.signal], entry, lambda name: [({"id": i}, v) for i, v in raw.items()], 0.0)
    assert sorted(found.values()) == [0.0, 1.0]
