"""The real process between Alertmanager's webhook and platforms that check signatures, sizes and rates."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

from k3observe.notify.server import MAX_CONNECTIONS
from tests.notify.robot_fakes import TOKENS, Platforms, alert, assert_no_secret, bridge, until, webhook, write_config

ALL = sorted(TOKENS)
CHINESE = "language: zh-CN\ntimezone: Asia/Shanghai"


def test_each_platform_gets_a_signed_message_with_what_an_operator_needs(fake: Platforms, tmp_path: Path) -> None:
    body = webhook(
        [
            alert(
                labels={"instance": "10.0.0.1:8000"},
                description="Usage stayed above 0.9 for 5 minutes",
                value="0.93",
                threshold="0.9",
                runbook_url="https://wiki.example.com/k3/KVCacheUsageHigh",
                dashboard_url="https://grafana.example.com/d/k3?var-service=kimi-k3",
            )
        ]
    )
    with bridge(write_config(tmp_path, fake.url)) as running:
        for robot in ALL:
            assert running.post(robot, body) == (200, "queued\n")
        messages = {message.platform: message for message in fake.wait(3)}
        assert sorted(messages) == ALL
        for message in messages.values():
            assert "FIRING 1 | KVCacheUsageHigh · kimi-k3" in message.title
            assert "KV cache of kimi-k3 is nearly full" in message.text
            assert "Usage stayed above 0.9 for 5 minutes" in message.text
            assert "Value: 0.93, threshold: 0.9" in message.text
            assert "Severity: warning | Action: scale out" in message.text
            assert "Since: 2026-11-30 01:02:03 +00:00" in message.text
            assert "instance=10.0.0.1:8000" in message.text
            assert "[Runbook](https://wiki.example.com/k3/KVCacheUsageHigh)" in message.text
            assert "[Dashboard](https://grafana.example.com/d/k3?var-service=kimi-k3)" in message.text
        assert messages["feishu"].body["card"]["header"]["template"] == "orange"
        until(lambda: running.metric('k3observe_notify_sent_total{robot="wecom",status="ok"}') == 1, 5, str)
        assert running.metric('k3observe_notify_last_success_timestamp_seconds{robot="wecom"}') > time.time() - 60
        assert_no_secret(running.request("GET", "/metrics")[1])


def test_a_chinese_robot_speaks_chinese_in_its_own_time_zone_and_tells_what_is_resolved(
    fake: Platforms, tmp_path: Path
) -> None:
    body = webhook([alert(status="resolved", summary="kimi-k3 的 KV 缓存即将耗尽", value="0.42")], status="resolved")
    with bridge(write_config(tmp_path, fake.url, dict.fromkeys(ALL, CHINESE))) as running:
        for robot in ALL:
            assert running.post(robot, body)[0] == 200
        for message in fake.wait(3):
            assert "【恢复 1】KVCacheUsageHigh · kimi-k3" in message.title
            assert "kimi-k3 的 KV 缓存即将耗尽" in message.text
            assert "级别：警告 | 建议动作：扩容" in message.text
            expected = "开始时间：2026-11-30 09:02:03 +08:00，恢复时间：2026-11-30 10:07:03 +08:00，持续 1h5m"
            assert expected in message.text
            if message.platform == "feishu":
                assert message.body["card"]["header"]["template"] == "green"


def test_owners_are_mentioned_while_an_alert_fires_and_left_alone_when_it_is_resolved(
    fake: Platforms, tmp_path: Path
) -> None:
    extra = {
        "dingtalk": 'mention: {users: ["13800001111", all], label: owner, owners: {infra: [zhangsan]}}',
        "feishu": "mention: {label: owner, owners: {infra: [ou_1, ou_2]}, severities: [critical]}",
        "wecom": "mention: {label: owner}",
    }
    critical = {"owner": "infra", "severity": "critical"}
    with bridge(write_config(tmp_path, fake.url, extra)) as running:
        for robot in ALL:
            assert running.post(robot, webhook([alert(labels=critical)]))[0] == 200
        messages = {message.platform: message for message in fake.wait(3)}
        assert messages["dingtalk"].body["at"] == {
            "atMobiles": ["13800001111"], "atUserIds": ["zhangsan"], "isAtAll": True,
        }  # fmt: skip
        assert messages["dingtalk"].text.endswith("@13800001111 @all @zhangsan")
        assert messages["feishu"].text.endswith("<at id=ou_1></at> <at id=ou_2></at>")
        assert messages["wecom"].text.endswith("<@infra>")
        assert running.post("feishu", webhook([alert("Other", labels={"owner": "infra"})]))[0] == 200
        assert "<at" not in fake.wait(4)[3].text
        assert running.post("feishu", webhook([alert(status="resolved", labels=critical)]))[0] == 200
        assert "<at" not in fake.wait(5)[4].text


def test_a_send_that_failed_in_whichever_way_is_repeated_until_it_is_delivered(fake: Platforms, tmp_path: Path) -> None:
    fake.script += [
        (503, b"<html>busy</html>", {}),
        (429, {"code": 99991400, "msg": "request trigger frequency limit"}, {"x-ogw-ratelimit-reset": "1"}),
        (400, {"code": 9499, "msg": "too many request", "data": {}}, {}),
        (200, {"code": 11232, "msg": "frequency limited"}, {}),
        (200, b"not JSON", {}),
        (302, b"", {"Location": "http://127.0.0.1:9/"}),
    ]
    with bridge(write_config(tmp_path, fake.url), "--delivery.retry", "0.01") as running:
        assert running.post("feishu", webhook([alert()]))[0] == 200
        fake.wait(1)
        running.logged("feishu: delivered")
        assert running.metric('k3observe_notify_retries_total{robot="feishu"}') == 6
        assert running.metric('k3observe_notify_queue_length{robot="feishu"}') == 0
        for status, count in {"error": 1, "rate_limited": 3, "refused": 2, "ok": 1}.items():
            assert running.metric(f'k3observe_notify_sent_total{{robot="feishu",status="{status}"}}') == count
    assert len(fake.messages) == 1


def test_a_rate_limit_told_under_http_200_is_an_error_and_says_what_to_do(fake: Platforms, tmp_path: Path) -> None:
    answers = {
        "dingtalk": {"errcode": 130101, "errmsg": "send too fast, exceed 20 times per minute"},
        "wecom": {"errcode": 45009, "errmsg": "api freq out of limit"},
    }
    with bridge(write_config(tmp_path, fake.url), "--delivery.retry", "0.1") as running:
        for robot, answer in answers.items():
            fake.script.append((200, answer, {}))
            assert running.post(robot, webhook([alert()]))[0] == 200
            running.logged(f"{robot}: not delivered (rate_limited)")
        fake.wait(2)
        for robot in answers:
            assert running.metric(f'k3observe_notify_sent_total{{robot="{robot}",status="rate_limited"}}') == 1
        assert running.log.count("give each sender its own robot") == 2


def test_a_wrong_secret_is_explained_and_heals_when_its_file_is_replaced(fake: Platforms, tmp_path: Path) -> None:
    config = write_config(tmp_path, fake.url)
    (tmp_path / "feishu.secret").write_text("outdated")
    with bridge(config, "--delivery.retry", "0.1") as running:
        assert running.post("feishu", webhook([alert()]))[0] == 200
        running.logged("put the bot's signing secret into secret_file")
        assert running.metric('k3observe_notify_sent_total{robot="feishu",status="refused"}') >= 1
        assert "outdated" not in running.log
        write_config(tmp_path, fake.url)
        fake.wait(1)


def test_a_secret_echoed_by_the_platform_is_not_logged(fake: Platforms, tmp_path: Path) -> None:
    echo = {"errcode": 93000, "errmsg": f"invalid key {TOKENS['wecom']}"}
    fake.script.append((200, echo, {}))
    with bridge(write_config(tmp_path, fake.url), "--shutdown.timeout", "0", "--log.level", "debug") as running:
        assert running.post("wecom", webhook([alert()]))[0] == 200
        running.logged("invalid key ***")


def test_an_unreachable_platform_is_reported_without_the_address_that_holds_the_token(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        config = write_config(tmp_path, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with bridge(config, "--log.level", "debug", "--shutdown.timeout", "0.2") as running:
            for robot in ALL:
                assert running.post(robot, webhook([alert()]))[0] == 200
            for robot in ALL:
                running.logged(f"{robot}: not delivered (error): no connection")
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(10) == 0
            assert "wecom: 1 notifications are lost" in running.log


def test_a_burst_keeps_to_the_rate_limit_and_arrives_merged_with_the_last_state_of_each_alert(
    fake: Platforms, tmp_path: Path
) -> None:
    fake.limit = 2  # of a minute: more messages than these would be refused
    names = [f"Alert{number}" for number in range(30)]
    with bridge(write_config(tmp_path, fake.url)) as running:
        for name in names:
            assert running.post("wecom", webhook([alert(name)]))[0] == 200
        assert running.post("wecom", webhook([alert(names[5], status="resolved")]))[0] == 200
        fake.wait(2)
        time.sleep(0.5)
    assert not fake.refused
    assert len(fake.messages) == 2
    assert "FIRING 28, RESOLVED 1" in fake.messages[1].text
    assert "30 notifications in one message" in fake.messages[1].text


def test_a_full_queue_answers_503_so_that_alertmanager_tries_again(fake: Platforms, tmp_path: Path) -> None:
    fake.script += [(500, b"", {})] * 9
    flags = ("--queue.length", "2", "--delivery.retry", "30", "--shutdown.timeout", "0")
    with bridge(write_config(tmp_path, fake.url), *flags) as running:
        answers = [running.post("feishu", webhook([alert(f"A{number}")])) for number in range(4)]
        assert [code for code, _ in answers] == [200, 200, 503, 503]
        assert "full" in answers[3][1]
        assert running.metric('k3observe_notify_notifications_total{outcome="queue_full",robot="feishu"}') == 2
        assert running.metric('k3observe_notify_queue_length{robot="feishu"}') == 2


def test_a_notification_that_cannot_be_delivered_is_given_up_after_a_while(fake: Platforms, tmp_path: Path) -> None:
    fake.script += [(500, b"", {})] * 5
    flags = ("--delivery.retry", "0.3", "--delivery.give-up", "1")
    with bridge(write_config(tmp_path, fake.url), *flags) as running:
        assert running.post("feishu", webhook([alert()]))[0] == 200
        series = 'k3observe_notify_notifications_total{outcome="expired",robot="feishu"}'
        until(lambda: running.metric(series) == 1, 15, lambda: running.log)
        assert "given up: 1" in running.log


def test_a_text_the_platform_never_accepts_is_replaced_by_a_pointer_to_alertmanager(
    fake: Platforms, tmp_path: Path
) -> None:
    fake.script.append((200, {"code": 11246, "msg": "parse card json err"}, {}))
    with bridge(write_config(tmp_path, fake.url)) as running:
        assert running.post("feishu", webhook([alert(), alert("Other")]))[0] == 200
        message = fake.wait(1)[0]
        assert "see the alerts in Alertmanager (2)" in message.text
        assert "KV cache of" not in message.text


def test_sigterm_delivers_what_is_queued_and_refuses_new_ones(fake: Platforms, tmp_path: Path) -> None:
    fake.delay = 0.7
    with bridge(write_config(tmp_path, fake.url)) as running:
        assert running.request("GET", "/-/ready")[0] == 200
        assert running.post("feishu", webhook([alert("First")]))[0] == 200
        assert running.post("feishu", webhook([alert("Second")]))[0] == 200
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.request("GET", "/-/ready")[0] == 503, 2, lambda: running.log)
        assert running.request("GET", "/-/healthy")[0] == 200
        assert running.post("feishu", webhook([alert("Third")]))[0] == 503
        assert running.process.wait(10) == 0
    told = " ".join(message.title for message in fake.messages)
    assert "First" in told
    assert "Second" in told
    assert "lost" not in running.log


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_hostile_requests_get_an_answer_and_never_a_message(fake: Platforms, tmp_path: Path) -> None:
    deep = b"[" * 200_000
    bad: list[object] = [
        b"", b"{", b"null", deep, b'{"version":' + b"1" * 5000 + b"}", b"\xff\xfe",
        webhook([]), webhook([alert()], version="3"), {**webhook([alert()]), "alerts": {}},
        webhook([{"status": "odd"}]),
        webhook([{**alert(), "labels": {"alertname": 1}}]), webhook([{**alert(), "annotations": []}]),
        {"version": "4", "alerts": ["x"]},
    ]  # fmt: skip
    with bridge(write_config(tmp_path, fake.url)) as running:
        for body in bad:
            code, text = running.post("feishu", body)
            assert code == 400, (body, text)
        assert running.post("nobody", webhook([alert()]))[0] == 404
        assert running.post("../metrics", b"{}")[0] == 404
        assert running.request("POST", "/metrics", b"")[0] == 405
        assert running.request("GET", "/feishu")[0] == 405
        assert raw(running.port, b"POST /feishu HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 411")
        head = b"POST /feishu HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n"
        assert raw(running.port, head % b"99999999").startswith(b"HTTP/1.1 413")
        assert raw(running.port, head % b"-5").startswith(b"HTTP/1.1 400")
        chunked = b"POST /feishu HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert raw(running.port, chunked).startswith(b"HTTP/1.1 411")
        assert running.request("GET", "/-/healthy") == (200, "healthy\n")
        assert running.metric('k3observe_notify_notifications_total{outcome="invalid",robot="feishu"}') >= len(bad)
        assert not fake.messages
        odd = alert("Odd\ud800\u202e", labels={"x": "\x00"}, summary="\ud83d", runbook_url="javascript:alert(1)")
        odd |= {"startsAt": "9999-12-31T23:59:59-23:59", "endsAt": 7, "fingerprint": None}
        assert running.post("feishu", json.dumps(webhook([odd], truncatedAlerts=-1)).encode())[0] == 200
        message = fake.wait(1)[0]
        assert "javascript" not in message.text
        assert message.title == "FIRING 1 | Odd · kimi-k3"


def test_every_series_is_there_from_the_start(fake: Platforms, tmp_path: Path) -> None:
    with bridge(write_config(tmp_path, fake.url)) as running:
        text = running.request("GET", "/metrics")[1]
        for robot in ALL:
            for status in ("ok", "rate_limited", "refused", "rejected", "error"):
                assert f'k3observe_notify_sent_total{{robot="{robot}",status="{status}"}} 0.0' in text
            for family in ("queue_length", "retries_total", "last_success_timestamp_seconds"):
                assert f'k3observe_notify_{family}{{robot="{robot}"}} 0.0' in text
        assert "_created" not in text
        assert running.metric("k3observe_notify_queue_capacity") == 100


def test_clients_that_hold_connections_open_do_not_exceed_the_bound_and_free_it_when_they_go(
    fake: Platforms, tmp_path: Path
) -> None:
    with bridge(write_config(tmp_path, fake.url)) as running:
        idle = [socket.create_connection(("127.0.0.1", running.port), timeout=5) for _ in range(MAX_CONNECTIONS)]
        assert raw(running.port, b"") == b""  # closed at once
        for connection in idle:
            connection.close()
        until(lambda: raw(running.port, b"GET /-/healthy HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"), 5, str)
