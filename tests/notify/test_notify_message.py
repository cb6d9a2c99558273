"""What a message says, and that it fits and stays harmless whatever the alerts say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3observe.notify.message import Mention, Message, compose, link
from k3observe.notify.payload import MAX_ALERTS, PayloadError, parse
from k3observe.notify.platforms import PLATFORMS
from k3observe.notify.robot import Credentials
from tests.notify.robot_fakes import alert, webhook

CREDENTIALS = Credentials("token-12345", "secret-12345")
EVERYONE = Mention(users=tuple(f"u{number:063d}" for number in range(20)))


def message(*bodies: Mapping[str, Any], language: str = "en", mention: Mention | None = None) -> Message:
    notifications = [parse(json.dumps(body).encode()) for body in bodies]
    return compose(notifications, language, ZoneInfo("Asia/Shanghai"), mention or Mention(), lambda user: True)


def sent(platform: str, said: Message) -> tuple[dict[str, Any], bytes]:
    robot = PLATFORMS[platform]
    body = robot.request(said, CREDENTIALS, robot.base_url, 1_780_000_000.0).body
    return json.loads(body), body


def text(platform: str, said: Message) -> str:
    document = sent(platform, said)[0]
    if platform == "dingtalk":
        return str(document["markdown"]["text"])
    if platform == "wecom":
        return str(document["markdown"]["content"])
    return str(document["card"]["elements"][0]["content"])


def size(platform: str, said: Message) -> int:
    """Bytes as the platform counts them."""
    document, body = sent(platform, said)
    return len(document["markdown"]["content"].encode()) if platform == "wecom" else len(body)


LIMITS = {"dingtalk": 20_000, "feishu": 20_000, "lark": 20_000, "wecom": 4096}
HOSTILE = st.text(st.sampled_from("<>[]()*`_&@!\\\"'\n\r\t #|~$\u202e\x00\ud83d") | st.characters(), max_size=800)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_message_fits_its_platform_and_is_valid_json_whatever_the_alerts_say(data: st.DataObject) -> None:
    alerts = []
    for number in range(data.draw(st.integers(1, 12))):
        entry = alert(data.draw(HOSTILE) or "x", data.draw(st.sampled_from(["firing", "resolved"])))
        entry["labels"] |= {"n": str(number), **data.draw(st.dictionaries(HOSTILE, HOSTILE, max_size=5))}
        notes = ("summary", "description", "value", "threshold")
        entry["annotations"] = {name: data.draw(HOSTILE) for name in notes}
        entry["annotations"] |= {"runbook_url": "https://w.example.com/" + data.draw(HOSTILE)}
        alerts.append(entry)
    language = data.draw(st.sampled_from(["en", "zh-CN"]))
    said = message(webhook(alerts), language=language, mention=EVERYONE)
    for platform, limit in LIMITS.items():
        for one in (said, said.bare()):
            assert size(platform, one) <= limit


@pytest.mark.parametrize("platform", LIMITS)
def test_the_largest_possible_alert_still_fits(platform: str) -> None:
    long = "😀" * 3000
    url = "https://wiki.example.com/" + "x" * 674
    entry = alert(long, labels={f"l{n}" + "n" * 200: long for n in range(80)}, summary=long, description=long)
    entry["annotations"] |= {"value": long, "threshold": long, "runbook_url": url, "dashboard_url": url}
    said = message(webhook([entry], truncatedAlerts=1_000_000), mention=EVERYONE)
    assert size(platform, said) <= LIMITS[platform]
    assert text(platform, said).count("](https://") == 2


@pytest.mark.parametrize("platform", LIMITS)
@pytest.mark.parametrize(("language", "more"), [("en", "… and {} more"), ("zh-CN", "…… 另有 {} 条")])
def test_what_does_not_fit_is_counted_and_the_most_urgent_come_first(platform: str, language: str, more: str) -> None:
    alerts = [alert(labels={"engine": str(n)}, summary=f"引擎 {n} 的 KV 缓存即将耗尽" * 3) for n in range(300)]
    alerts.append(alert("EngineDown", labels={"severity": "critical"}, summary="引擎失联"))
    said = message(webhook(alerts, truncatedAlerts=7), language=language)
    written = text(platform, said)
    assert written.count("🔴") == 1
    shown = 1 + written.count("🟠")
    assert 5 < shown <= MAX_ALERTS
    assert more.format(301 + 7 - shown) in written
    assert written.index("引擎失联") < written.index("KV 缓存即将耗尽")


@pytest.mark.parametrize("platform", LIMITS)
def test_text_from_alerts_cannot_make_links_mentions_images_or_markup(platform: str) -> None:
    evil = (
        "x](https://evil.example.com) [y](https://evil.example.com) <at id=all></at> <@all> ![i](https://e.example.com)"
    )
    entry = alert(evil, labels={"service": evil, "odd": evil}, summary=evil, description=evil, value=evil)
    entry["annotations"] |= {"runbook_url": "https://w.example.com/a) [z](https://evil.example.com"}
    written = text(platform, message(webhook([entry])))
    assert "](https://evil" not in written
    assert "<at" not in written
    assert "<@" not in written
    assert "![" not in written


def test_of_an_alert_told_twice_the_later_state_stands() -> None:
    said = message(webhook([alert("A"), alert("B")]), webhook([alert("A", status="resolved")]))
    assert [(item.firing, item.times.count("Resolved")) for item in said.items] == [(True, 0), (False, 1)]
    assert said.title == "FIRING 1, RESOLVED 1 | B, A · kimi-k3"


def test_a_merged_message_counts_what_it_does_not_word() -> None:
    said = message(
        *(webhook([alert(labels={"n": f"{k}-{i}"}) for i in range(150)], truncatedAlerts=1) for k in range(3))
    )
    assert len(said.items) == MAX_ALERTS
    assert said.omitted == 3 * 151 - MAX_ALERTS
    assert "FIRING 450" in said.title


def test_labels_that_all_alerts_share_are_told_once() -> None:
    said = message(webhook([alert(labels={"engine": "0"}), alert(labels={"engine": "1"})]))
    assert said.head == ("Severity: warning | Action: scale out | Labels: service=kimi-k3, stack=k3",)
    assert [item.labels for item in said.items] == ["Labels: engine=0", "Labels: engine=1"]


@pytest.mark.parametrize("platform", LIMITS)
def test_alerts_of_different_severity_and_action_each_tell_theirs_in_the_punctuation_of_the_language(
    platform: str,
) -> None:
    alerts = [alert("A"), alert("B", labels={"severity": "critical", "action": "investigate"}),
              alert("C", labels={"severity": "info"}), alert("D", "resolved", labels={"severity": "critical"})]
    said = message(webhook(alerts), language="zh-CN")
    assert [item.summary.partition("（")[2] for item in said.items] == [
        "严重，排查）", "警告，扩容）", "提示，扩容）", "严重，扩容）"]
    assert said.severity == "critical"
    written = text(platform, said)
    assert re.findall("[🔴🟠🔵🟢]", written) == ["🔴", "🟠", "🔵", "🟢"]
    assert "(严重" not in written
    assert message(webhook(alerts)).items[0].summary.endswith(" (critical, investigate)")


@pytest.mark.parametrize(("notes", "shown"), [
    ({"value": "0"}, ""), ({"value": "1"}, ""), ({"value": "1e+06"}, ""), ({}, ""),
    ({"value": "97%"}, "Value: 97%"), ({"value": "12 s"}, "Value: 12 s"),
    ({"value": "0.42", "threshold": "0.3"}, "Value: 0.42, threshold: 0.3"),
])
def test_a_value_without_unit_and_threshold_says_nothing_and_is_left_out(notes: dict[str, str], shown: str) -> None:
    assert message(webhook([alert(**notes)])).items[0].value == shown


def test_an_owner_label_alone_never_mentions_everybody() -> None:
    for owner in ("all", ""):
        assert message(webhook([alert(labels={"owner": owner})]), mention=Mention(label="owner")).mentions == ()
    mapped = Mention(label="owner", owners={"infra": ("all",)})
    assert message(webhook([alert(labels={"owner": "infra"})]), mention=mapped).mentions == ("all",)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://g.example.com/d/x?a=1&b=中文", "https://g.example.com/d/x?a=1&b=%E4%B8%AD%E6%96%87"),
        ("https://g.example.com/d?q={a}%20b", "https://g.example.com/d?q=%7Ba%7D%20b"),
        ("https://g.example.com/a)b(c", "https://g.example.com/a%29b%28c"),
        ("javascript:alert(1)", ""),
        ("file:///etc/passwd", ""),
        ("https://", ""),
        ("https://[::1", ""),
        ("https://x y", ""),
        ("https://g.example.com/" + "x" * 700, ""),
        ("", ""),
    ],
)
def test_only_http_links_of_bounded_length_become_links(url: str, safe: str) -> None:
    assert link(url) == safe


def test_the_signatures_are_those_that_openssl_computes() -> None:
    said = message(webhook([alert()]))
    credentials = Credentials("t", "this is secret")
    url = PLATFORMS["dingtalk"].request(said, credentials, "https://d.example.com", 1_577_262_236.757).url
    # printf '1577262236757\nthis is secret' | openssl dgst -sha256 -hmac 'this is secret' -binary | base64
    assert url == (
        "https://d.example.com/robot/send?access_token=t&timestamp=1577262236757"
        "&sign=hmPWwU%2B7lVdm3ZZz0r9tSfx0L4Q26jWOZr9%2BGs6EZQM%3D"
    )
    body = json.loads(
        PLATFORMS["feishu"].request(said, Credentials("t", "demo"), "https://f.example.com", 1_599_360_473.9).body
    )
    assert (body["timestamp"], body["sign"]) == ("1599360473", "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8=")


@pytest.mark.parametrize("name", ["fingerprint", "startsAt", "labels", "annotations"])
def test_a_field_alertmanager_might_leave_out_may_be_missing(name: str) -> None:
    entry = alert()
    del entry[name]
    assert message(webhook([entry])).items


@pytest.mark.parametrize("body", [b"[]", b'{"version":"4"}', b'{"version":"4","alerts":[[]]}', b"\x00"])
def test_other_bodies_are_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(PayloadError, match=re.compile("Alertmanager|alerts")):
        parse(body)


def test_credentials_are_not_shown_by_repr() -> None:
    robot = PLATFORMS["dingtalk"]
    request = robot.request(message(webhook([alert()])), CREDENTIALS, robot.base_url, 0.0)
    assert "12345" not in repr(CREDENTIALS) + repr(request)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.text(), inner), max_leaves=10)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(field=st.sampled_from(["labels", "annotations", "startsAt", "endsAt", "status", "fingerprint"]), value=JSON)
def test_whatever_stands_in_a_field_the_body_is_read_or_refused(field: str, value: object) -> None:
    try:
        said = message(webhook([{**alert(), field: value}], truncatedAlerts=value))
    except PayloadError:
        return
    for platform, limit in LIMITS.items():
        assert size(platform, said) <= limit
