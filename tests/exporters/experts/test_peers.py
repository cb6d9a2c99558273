from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3observe.exporters.experts.loads import ExpertLoads
from k3observe.exporters.experts.pages import Fetcher, PageError
from k3observe.exporters.experts.peers import add_up, window_url

BALANCE = "k3_expert_balance_ratio"


def file_flags(path: Path) -> tuple[str, str]:
    return "--experts.source=file", f"--experts.file={path}"


def test_three_nodes_give_the_services_balance_that_none_of_them_sees_alone(
    sidecar: Callable[..., Any], counts_file: Callable[..., Path]
) -> None:
    """Each node's ranks send to all ranks; two nodes see 0.375, and the service's balance is 0.562."""
    routed = [[24000, 8000, 2000, 2000]], [[8000, 24000, 2000, 2000]], [[0, 0, 0, 0]]
    files = [
        counts_file(f"node-{index}.json", counts, ranks_seen=4, ranks_expected=12)
        for index, counts in enumerate(routed)]
    alone = sidecar(*file_flags(files[1]))
    alone.expect(BALANCE, 0.375)
    alone.kill()
    others = [sidecar(*file_flags(path), "--experts.window-only") for path in files[1:]]
    service = sidecar(*file_flags(files[0]), *(f"--experts.peer={other.url}" for other in others))
    service.expect(BALANCE, 0.5625, scope="rank", formula="mean_of_layers")
    service.expect("k3_expert_ranks_seen", 12)
    service.expect("k3_expert_ranks_expected", 12)
    service.expect("k3_source_up", 1, source="peers")
    service.expect("k3_expert_rank_load_ratio", 32000 / 18000, rank="0")
    for other in others:
        assert not [name for name in other.scrape() if name.startswith("k3_expert")]
        other.expect("k3_source_up", 1, source="file")

    others[0].kill()
    service.expect("k3_expert_ranks_seen", 8)
    service.expect("k3_expert_ranks_expected", 12)
    service.expect("k3_source_up", 0, source="peers")
    service.expect(BALANCE, 0.375)
    assert "a peer is missing" in service.log.read_text()


def test_a_peer_that_stops_answering_does_not_delay_a_scrape(
    sidecar: Callable[..., Any], counts_file: Callable[..., Path]
) -> None:
    path = counts_file("node.json", [[20000, 10000]], ranks_seen=1, ranks_expected=2)
    other = sidecar(*file_flags(counts_file("other.json", [[10000, 20000]], ranks_seen=1)), "--experts.window-only")
    service = sidecar(*file_flags(path), f"--experts.peer={other.url}")
    service.expect(BALANCE, 1)
    other.process.send_signal(signal.SIGSTOP)
    try:
        service.expect("k3_expert_ranks_seen", 1)
        began = time.monotonic()
        service.scrape()
        assert time.monotonic() - began < 1
        service.expect(BALANCE, 0.75)
    finally:
        other.process.send_signal(signal.SIGCONT)
    service.expect("k3_expert_ranks_seen", 2)
    service.expect("k3_source_up", 1, source="peers")


def test_a_sidecar_that_is_its_own_peer_or_is_named_twice_counts_once(
    sidecar: Callable[..., Any], counts_file: Callable[..., Path]
) -> None:
    path = counts_file("node.json", [[20000, 10000]], ranks_seen=1)
    other = sidecar(*file_flags(path), "--experts.window-only")
    twice = other.url.replace("127.0.0.1", "localhost")
    service = sidecar("--experts.peer", other.url, "--experts.peer", twice)
    service.expect("k3_expert_window_tokens", 30000)
    service.expect("k3_expert_ranks_seen", 1)


def loads(counts: tuple[tuple[int, ...], ...], **others: Any) -> ExpertLoads:
    return ExpertLoads("K3", "rank", counts, 1.0, 1.0, **others)


def test_a_window_of_another_shape_is_left_out_and_named() -> None:
    (total,), (problem,) = add_up([[loads(((1, 2),), ranks_seen=1)], [loads(((1, 2, 3), (1, 2, 3)), ranks_seen=1)]])
    assert (total.counts, total.ranks_seen) == (((1, 2),), 1)
    assert "does not fit" in problem


def test_nodes_that_count_only_what_their_own_ranks_received_lie_side_by_side() -> None:
    (total,), problems = add_up([[loads(((1, 2),), columns=(0, 1))], [loads(((3, 4),), columns=(2, 3))], []])
    assert (total.counts, total.ranks_seen, problems) == (((1, 2, 3, 4),), 4, [])


@pytest.mark.parametrize("url", ["node-2:19303", "ftp://node", "http://", "http://node:99999", "http://a:b@node"])
def test_a_peer_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|Port|user names"):
        window_url(url)


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """A server on loopback whose answers the test writes byte by byte."""
    listeners: list[socket.socket] = []

    def start(answer: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    answer(connection)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"1")
        time.sleep(0.05)


def drip_headers(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 200 OK\r\n"[:1])
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"1" * 65536)


@pytest.mark.parametrize(("answer", "message"), [
    (drip, "not answered within 0.5 s"),
    (drip_headers, "not answered within 0.5 s"),
    (lambda connection: time.sleep(3), "not answered within 0.5 s"),
    (flood, "more than 1000000 bytes"),
    (lambda connection: connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n"), "status 302"),
    (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), "8 bytes are missing"),
    (lambda connection: connection.sendall(b"\x00\xff\n"), "BadStatusLine"),
    (lambda connection: None, "closed|reset"),
])
def test_a_slow_endless_or_broken_page_is_given_up_in_time(
    server: Callable[[Callable[[socket.socket], None]], str], answer: Callable[[socket.socket], None], message: str
) -> None:
    url = server(answer)
    began = time.monotonic()
    with pytest.raises(PageError, match=message):
        Fetcher(0.5, 1_000_000).get(url)
    assert time.monotonic() - began < 2


def test_a_page_is_fetched_with_the_authorization_of_a_file(
    server: Callable[[Callable[[socket.socket], None]], str], tmp_path: Path
) -> None:
    url = server(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    (tmp_path / "secret").write_text("Basic dXNlcjpwYXNz\n")
    assert Fetcher(2, 100, authorization_file=tmp_path / "secret").get(url) == b"ok"
    with pytest.raises(PageError, match="No such file"):
        Fetcher(2, 100, authorization_file=tmp_path / "none").get(url)
