"""The catalogue against every captured exposition.

What this does not prove: that flags which no capture was made with add the series the catalogue names (KV connectors,
HTTP metrics: those entries say ``evidence: documentation``), that releases between two captures are like them (the
survey of names in ``history`` covers their names, not their labels), and anything about MindIE, dcgm-exporter,
npu-exporter and vLLM-Ascend beyond their documentation.
"""

from __future__ import annotations

from k3observe.catalogue import Catalogue, Entry, Gap, Version
from k3observe.catalogue.expression import label_sources
from k3observe.catalogue.history import history

from .conftest import Captured


def _optional(entry: Entry) -> bool:
    """Series that may be absent from a capture: behind a flag, before the first event, never captured."""
    return bool(entry.enable) or entry.lazy or entry.evidence == "documentation"


def test_every_raw_name_exists_in_the_exposition_with_that_type(
    catalogue: Catalogue, captures: dict[str, Captured]
) -> None:
    seen = 0
    for capture in captures.values():
        for signal in catalogue.signals:
            for entry in catalogue.candidates(capture.engine, signal, capture.version):
                for name, kind in entry.metrics.items():
                    present = name in capture.types and any(
                        sample == name or sample.startswith(name + "_") for sample in capture.samples)  # fmt: skip
                    if present:
                        assert capture.types[name] == kind, (capture.name, signal, name)
                        seen += 1
                    else:
                        assert _optional(entry) or entry.when, (capture.name, signal, name)
    assert seen > 300


def test_every_label_the_catalogue_reads_is_on_the_series(catalogue: Catalogue, captures: dict[str, Captured]) -> None:
    for capture in captures.values():
        for signal in catalogue.signals.values():
            for entry in catalogue.candidates(capture.engine, signal.name, capture.version):
                for term in entry.terms:
                    series = capture.samples.get(term.sample, [])
                    for label, value in term.match.items():
                        if series and value:
                            assert all(label in labels for labels, _ in series), (capture.name, term.name, label)
                    for name, source in label_sources(signal, entry, term).items():
                        if series and not source.constant and name != "engine":
                            assert all(source.raw in labels for labels, _ in series), (capture.name, term.name, name)


def test_no_label_that_tells_series_apart_is_lost_unless_the_catalogue_adds_or_collapses_it(
    catalogue: Catalogue, captures: dict[str, Captured]
) -> None:
    """A gauge must not pick one of several values by chance: what is aggregated away is the same or is meant to be."""
    known = {"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"}
    for capture in captures.values():
        for signal in catalogue.signals.values():
            for entry in catalogue.candidates(capture.engine, signal.name, capture.version)[:1]:
                if signal.kind != "gauge" or entry.aggregate not in ("max", "min"):
                    continue
                for term in entry.terms:
                    kept = {source.raw for source in label_sources(signal, entry, term).values()}
                    kept |= {label for label, value in term.match.items() if value and value[0] != "~"}
                    groups: dict[tuple[str, ...], int] = {}
                    for labels, _ in capture.samples.get(term.name, []):
                        if all(labels.get(k, "") == v for k, v in term.match.items() if v[:1] != "~"):
                            group = tuple(labels.get(name, "") for name in sorted(kept))
                            groups[group] = groups.get(group, 0) + 1
                    if term.name not in known:
                        assert all(count == 1 for count in groups.values()), (capture.name, term.name, groups)


def test_the_raw_names_are_those_known_to_carry_the_signals(
    catalogue: Catalogue, captures: dict[str, Captured], expected: dict[str, dict[str, object]]
) -> None:
    for name, known in expected.items():
        capture = captures[name]
        signals = known["signals"]
        assert isinstance(signals, dict)
        for signal, metric in signals.items():
            candidates = catalogue.candidates(capture.engine, signal, capture.version)
            there = [entry for entry in candidates if entry.metric in capture.samples]
            if metric is None:
                assert not there, (name, signal)
            else:
                assert there, (name, signal)
                assert there[0].metric == metric, (name, signal)


def test_buckets_are_those_of_the_exposition(catalogue: Catalogue, captures: dict[str, Captured]) -> None:
    compared = 0
    for capture in captures.values():
        for signal in catalogue.signals.values():
            for entry in catalogue.candidates(capture.engine, signal.name, capture.version):
                series = capture.samples.get(entry.terms[0].name + "_bucket", [])
                if entry.buckets and series:
                    bounds = {float(labels["le"]) for labels, _ in series} - {float("inf")}
                    assert set(entry.buckets) == bounds, (capture.name, signal.name)
                    compared += 1
    assert compared > 80


def test_every_raw_name_exists_in_every_surveyed_release_of_its_range(catalogue: Catalogue) -> None:
    oldest = {"vllm": Version.parse("0.6.0"), "sglang": Version.parse("0.4.10")}
    for source, floor in oldest.items():
        table = history(source)
        assert table is not None
        for entry in catalogue.sources[source].entries:
            for name, kind in entry.metrics.items():
                if name == "http_requests_total":  # of the HTTP library, not of the engine
                    continue
                metric = table.metrics[name]
                assert metric.type == kind, name
                for release in table.releases:
                    if release >= floor and release in entry.versions:
                        assert metric.visible(release), (source, entry.signal, name, str(release))


def test_an_open_version_reads_like_its_newest_patch(catalogue: Catalogue) -> None:
    for short, patch in (("0.9", "0.9.2"), ("0.11", "0.11.2"), ("0.33", "0.33.0")):
        for signal in catalogue.signals:
            one = catalogue.entry("vllm", signal, Version.parse(short))
            other = catalogue.entry("vllm", signal, Version.parse(patch))
            assert isinstance(one, Gap) == isinstance(other, Gap)
            if isinstance(one, Entry):
                assert one is other


def test_balance_of_vllm_below_0_28_is_refused_with_the_reason(catalogue: Catalogue) -> None:
    gap = catalogue.entry("vllm", "expert_balance", Version.parse("0.27.1"))
    assert isinstance(gap, Gap)
    assert "averaged over layers" in gap.reason.en
    assert gap.fix is not None


def test_what_was_never_captured_says_documentation(catalogue: Catalogue) -> None:
    for source in ("mindie", "dcgm", "npu-exporter", "vllm-ascend", "generic"):
        assert catalogue.sources[source].entries
        assert {entry.evidence for entry in catalogue.sources[source].entries} == {"documentation"}


def test_both_languages_are_there_for_every_sentence(catalogue: Catalogue) -> None:
    sentences = [signal.meaning for signal in catalogue.signals.values()]
    for source in catalogue.sources.values():
        sentences += [entry.misleads for entry in source.entries if entry.misleads]
        sentences += [text for gap in source.gaps for text in (gap.reason, gap.fix) if text]
    for text in sentences:
        assert text.en.isascii(), text.en
        assert any("一" <= character <= "鿿" for character in text.zh), text.zh
