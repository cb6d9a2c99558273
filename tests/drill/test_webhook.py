from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest

from k3observe.drill.webhook import receive


def post(url: str, body: bytes) -> int:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=5) as answer:
        return int(answer.status)


def test_what_is_received_is_kept_in_order_and_can_be_waited_for() -> None:
    with receive() as receiver:
        later = threading.Timer(0.1, lambda: post(receiver.url("b"), b'{"status": "resolved", "alerts": []}'))
        post(receiver.url("/a"), b'{"status": "firing", "alerts": [{"labels": {"alertname": "X"}}]}')
        later.start()
        assert receiver.wait_for(lambda n: n.status == "resolved", 5).path == "/b"
        assert [n.path for n in receiver.notifications] == ["/a", "/b"]
        assert receiver.notifications[0].names() == {"X"}


def test_waiting_in_vain_says_what_came_instead() -> None:
    with receive() as receiver:
        post(receiver.url("a"), b'{"status": "firing"}')
        with pytest.raises(TimeoutError, match=r"within 0.1 s; received: \[\('/a', 'firing', \[\]\)\]"):
            receiver.wait_for(lambda n: n.path == "/b", 0.1)


def test_what_is_no_json_object_is_refused_and_not_kept() -> None:
    with receive() as receiver:
        for body in (b"[]", b"{"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(receiver.url(), body)
        assert receiver.notifications == ()
