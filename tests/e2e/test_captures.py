"""From a capture of a real engine to the webhook of its action: scraped, recorded, fired, routed, worded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from k3observe.drill.binaries import Release
from k3observe.drill.exposition import Spelling
from k3observe.drill.replay import Manner, load, serve

from .room import Room, running

ALERTS = {"KVCacheUsageHigh": {"for": "2s", "keep_firing_for": "0s", "window": "4s"}}


class Capture(NamedTuple):
    """A captured exposition, and what the configuration says of the engine that gave it."""

    file: str
    engine: str
    version: str
    usage: str
    engine_label: str


CAPTURES = (
    Capture("vllm-0.33.0-served.prom", "vllm", "0.33.0", "vllm:kv_cache_usage_perc", "0"),
    Capture("vllm-0.11.2.prom", "vllm", "0.11.2", "vllm:kv_cache_usage_perc", "0"),
    Capture("vllm-0.9.2-dp2.prom", "vllm", "0.9.2", "vllm:kv_cache_usage_perc", "1"),
    Capture("sglang-0.5.23.prom", "sglang", "0.5.23", "sglang:token_usage", "0"),
    Capture("mindie-documented.prom", "mindie", "2.0", "npu_cache_usage_perc", "0"),
)
SPELLINGS: tuple[Spelling, ...] = ("colon", "underscore")


class Told(NamedTuple):
    """The room, and the address of each service's engine."""

    room: Room
    addresses: dict[str, str]


def service_name(capture: Capture, spelling: Spelling | None) -> str:
    return f"{capture.engine}-{capture.version}-{spelling or 'asked'}"


def all_full(
    stack: ExitStack, shared: Path, folder: Path, release: Release, cases: list[tuple[Capture, Spelling | None]]
) -> Told:
    services, addresses = [], {}
    for capture, spelling in cases:
        replay = load(shared / "samples/engines" / capture.file)
        target = stack.enter_context(serve(replay, Manner(spelling=spelling)))
        replay.set_gauge(capture.usage, 0.95)
        name = service_name(capture, spelling)
        addresses[name] = target.address
        engine = {"name": capture.engine, "version": capture.version}
        services.append({"name": name, "engine": engine, "targets": [target.address]})
    room = stack.enter_context(running(folder, services, ALERTS, release))
    room.scraped(len(services))
    return Told(room, addresses)


def check(told: Told, capture: Capture, spelling: Spelling | None) -> None:
    """The one notification of a service, word by word."""
    name = service_name(capture, spelling)
    notification, alert = told.room.notified("KVCacheUsageHigh", "firing", 30, {"service": name})
    assert notification.path == "/scale_out"
    assert notification.payload["groupLabels"] == {"stack": "proof", "service": name}
    labels = dict(alert["labels"])
    model = labels.pop("model_name")
    assert labels == {
        "alertname": "KVCacheUsageHigh", "severity": "warning", "action": "scale_out", "stack": "proof",
        "service": name, "instance": told.addresses[name], "engine": capture.engine_label,
    }  # fmt: skip
    annotations = alert["annotations"]
    assert (annotations["value"], annotations["threshold"]) == ("95%", "90%")
    assert annotations["runbook_url"] == "https://runbooks.example.com/k3/KVCacheUsageHigh"
    assert annotations["dashboard_url"].startswith("https://grafana.example.com/d/k3-proof-")
    assert name in annotations["summary"]
    assert model in annotations["description"]
    assert told.room.paths("KVCacheUsageHigh") == {"scale_out"}


@pytest.mark.long
@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_a_full_cache_of_vllm_reaches_the_scaler_with_its_words(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, shared: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        told = all_full(stack, shared, tmp_path, toolset, [(CAPTURES[0], None)])
        check(told, CAPTURES[0], None)


@pytest.fixture(scope="module")
def told(
    toolset: Release, prometheus_bin: Path, alertmanager_bin: Path, shared: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Told]:  # fmt: skip
    """Every capture in both spellings, in one Prometheus a release."""
    cases = [(capture, spelling) for capture in CAPTURES for spelling in SPELLINGS]
    with ExitStack() as stack:
        yield all_full(stack, shared, tmp_path_factory.mktemp("captures"), toolset, list(cases))


@pytest.mark.long
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: f"{capture.engine}-{capture.version}")
def test_every_capture_in_either_spelling_reaches_the_scaler_with_its_words(
    told: Told, capture: Capture, spelling: Spelling
) -> None:
    check(told, capture, spelling)


@pytest.mark.long
def test_no_rule_fails_on_any_capture(told: Told) -> None:
    groups = told.room.prometheus.get_json("/api/v1/rules")["data"]["groups"]
    assert groups
    assert not [(rule["name"], rule["lastError"]) for group in groups for rule in group["rules"]
                if rule["health"] == "err"]  # fmt: skip
