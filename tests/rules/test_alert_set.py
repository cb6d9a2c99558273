"""The alert set: complete, in two languages, each alert proved, and shared by services with the same numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from k3observe.render import render
from k3observe.render.alerts import rules
from k3observe.rules import Alert, load
from tests.conftest import ROOT
from tests.rules.stacks import SERVICES, planned, stack

WANTED = [
    "KVCacheUsageHigh", "KVCacheSaturated", "KVCacheHitRatioLow", "KVCachePreemptionsHigh", "ExpertLoadVarianceHigh",
    "ExpertBalanceLow", "ExpertRankOverloaded", "ExpertSourceStale", "AcceleratorMemoryHigh",
    "AcceleratorMemoryGrowing", "AcceleratorLost", "AcceleratorUnhealthy", "AcceleratorApplicationError",
    "AcceleratorReadStale", "AcceleratorHot", "AcceleratorThrottled", "AcceleratorLinkDown", "EngineDown",
    "EngineReplicasLow", "EngineStalled", "RequestsQueueing", "TimeToFirstTokenHigh", "InterTokenLatencyHigh",
    "QueueTimeHigh", "SLOBurnRateFast", "SLOBurnRateSlow", "RequestErrorsHigh", "RequestAbortsHigh",
    "RequestsRejected", "RequestsTimedOut", "ExporterDown", "SignalMissing", "Watchdog",
]  # fmt: skip
SECTIONS = {
    "en": ["Meaning", "Impact", "Confirm", "Likely causes", "What to do", "What not to do", "Escalate"],
    "zh-CN": ["含义", "影响", "如何确认", "可能原因（按概率排序）", "处置", "不要做", "升级"],
}
ALERTS = load().alerts


def engine_down() -> dict[str, Any]:
    written = yaml.safe_load((ROOT / "rules" / "engine.yaml").read_text())
    return next(item for item in written["alerts"] if item["alert"] == "EngineDown")  # type: ignore[no-any-return]


def test_the_set_is_complete() -> None:
    assert sorted(ALERTS) == sorted(WANTED)


@pytest.mark.parametrize("name", ALERTS)
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_texts_are_written_in_both_languages(name: str, language: str) -> None:
    alert = ALERTS[name]
    texts = [alert.title, alert.summary, alert.description, alert.runbook]
    for text in texts:
        chinese = re.search(r"[\u4e00-\u9fff]", text.get(language))
        assert bool(chinese) == (language == "zh-CN"), text.get(language)
    found = re.findall(r"^## (.+)$", alert.runbook.get(language), re.MULTILINE)
    wanted = SECTIONS[language]
    if name == "Watchdog":  # it has no impact and no causes of its own
        wanted = [section for section in wanted if section in found]
    assert found == wanted


def test_both_languages_name_the_same_flags_and_queries() -> None:
    for alert in ALERTS.values():
        code = [sorted(set(re.findall(r"`(--?[\w-]+|k3:[\w:]+)", alert.runbook.get(x)))) for x in ("en", "zh-CN")]
        assert code[0] == code[1], alert.name


def test_every_alert_is_armed_for_some_service_and_proved_to_fire_and_to_be_quiet() -> None:
    fired: set[str] = set()
    for name in SERVICES:
        made = planned(stack(name))
        for path, content in render(made, frozenset({"prometheus"})).items():
            if not path.startswith("prometheus/tests/k3-") or "-signals-" in path or "-another-" in path:
                continue
            alert = path.removeprefix("prometheus/tests/k3-").removesuffix(".yml")
            moments = [m for test in yaml.safe_load(content)["tests"] for m in test["alert_rule_test"]]
            assert any(m["exp_alerts"] for m in moments), f"{name}: {alert} is never proved to fire"
            assert alert == "Watchdog" or not all(m["exp_alerts"] for m in moments), f"{name}: {alert} is never quiet"
            fired.add(alert)
        tested = {item.alert.name for item in made.armed}
        assert tested <= fired, f"{name}: no test was rendered for {tested - fired}"
    assert fired == set(ALERTS)


def test_labels_that_texts_name_are_kept_by_the_expression() -> None:
    for name in SERVICES:
        made = planned(stack(name))
        for group in made.pack.groups:
            for rule in rules(made, group):
                named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule.annotations.values())))
                assert named <= {*rule.by, *rule.labels}, f"{name}: {rule.alert.name}"


def test_an_alert_whose_text_names_a_label_it_drops_is_refused() -> None:
    document = engine_down() | {"keep": []}
    with pytest.raises(ValidationError, match="names the label 'instance', which the expression drops"):
        Alert.model_validate(document)


def test_an_alert_without_a_test_is_refused() -> None:
    document = engine_down() | {"tests": []}
    with pytest.raises(ValidationError, match="an alert without a test is no alert"):
        Alert.model_validate(document)


@pytest.mark.long
def test_a_thousand_services_with_the_same_numbers_share_one_rule_an_alert() -> None:
    document = stack()
    one = document["services"][0]
    document["services"] = [
        one | {"name": f"s{i}", "targets": [f"10.1.{i // 250}.{i % 250}:8000"]} for i in range(1000)
    ]  # fmt: skip
    document["services"][7] |= {"alerts": {"KVCacheUsageHigh": {"threshold": 0.8}}}
    made = planned(document)
    counts = dict.fromkeys(ALERTS, 0)
    for group in made.pack.groups:
        for rule in rules(made, group):
            counts[rule.alert.name] += 1
    assert counts.pop("KVCacheUsageHigh") == 2
    assert set(counts.values()) <= {0, 1, 2}, counts
    texts = [rule.expr for group in made.pack.groups for rule in rules(made, group)
             if rule.alert.name == "KVCacheUsageHigh"]  # fmt: skip
    assert [re.search(r'service!?="\w+"', text)[0] for text in texts] == ['service!="s7"', 'service="s7"']  # type: ignore[index]
