from __future__ import annotations

import base64
import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import bcrypt
import pytest

from k3observe.exporters.fetch import client_context
from k3observe.exporters.web import authentication
from k3observe.exporters.web.authentication import BasicAuth
from tests.exporters.exporter_process import PROGRAM, Certificate, Exporter, split, wait_until

Run = Callable[..., Exporter]
Certify = Callable[[str], Certificate]
FLAGS = ("--collect=kv-cache", "--kv-cache.url=http://127.0.0.1:1/metrics")


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode().replace("$2b$", "$2y$")


def basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def over_tls(
    exporter: Exporter, ca: Path, client: Certificate | None = None, version: ssl.TLSVersion | None = None
) -> tuple[int, bytes]:
    context = client_context(ca, insecure=False)
    if client:
        context.load_cert_chain(client.cert, client.key)
    if version:
        context.maximum_version = version
    with context.wrap_socket(exporter.connect(), server_hostname="127.0.0.1") as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status, _, body = split(b"".join(iter(lambda: sock.recv(65536), b"")))
        return status, body


def test_tls_serves_https_only_and_takes_a_rotated_certificate_without_a_restart(
    run_exporter: Run, certify: Certify, tmp_path: Path
) -> None:
    first, second = certify("127.0.0.1"), certify("127.0.0.1")
    (tmp_path / "tls.pem").write_bytes(first.cert.read_bytes())
    (tmp_path / "tls.key").write_bytes(first.key.read_bytes())
    web = tmp_path / "web.yml"
    web.write_text("tls_server_config:\n  cert_file: tls.pem\n  key_file: tls.key\n  min_version: TLS12\n"
                   "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    status, body = over_tls(exporter, first.ca)
    assert status == 200
    assert b"k3observe_exporter_build_info" in body
    with contextlib.suppress(ConnectionResetError):
        assert exporter.ask("GET / HTTP/1.0\r\n\r\n") == b""
    with pytest.raises(ssl.SSLError):
        over_tls(exporter, first.ca, version=ssl.TLSVersion.TLSv1_1)

    def serial() -> str:
        context = client_context(first.ca, insecure=False)
        with context.wrap_socket(exporter.connect(), server_hostname="127.0.0.1") as sock:
            return str(sock.getpeercert()["serialNumber"])  # type: ignore[index]

    before = serial()
    (tmp_path / "tls.pem").write_bytes(second.cert.read_bytes())
    assert serial() == before  # certificate and key do not match now: the last good ones stay
    exporter.wait_for_log("is not used: .*cert_file: cannot use")
    (tmp_path / "tls.key").write_bytes(second.key.read_bytes())
    wait_until(lambda: serial() != before)
    web.write_text("")
    assert serial() != before
    exporter.wait_for_log("restart the exporter")


def test_a_client_certificate_is_asked_for_and_verified(
    run_exporter: Run, certify: Certify, tmp_path: Path
) -> None:
    server, client = certify("127.0.0.1"), certify("prometheus")
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config:\n  cert_file: {server.cert}\n  key_file: {server.key}\n"
                   f"  client_ca_file: {server.ca}\n  client_auth_type: RequireAndVerifyClientCert\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    assert over_tls(exporter, server.ca, client)[0] == 200
    with pytest.raises((ssl.SSLError, ConnectionError, ValueError, IndexError)):
        over_tls(exporter, server.ca)


def test_a_handshake_that_never_ends_delays_nobody(run_exporter: Run, certify: Certify, tmp_path: Path) -> None:
    server = certify("127.0.0.1")
    web = tmp_path / "web.yml"
    web.write_text(f"tls_server_config: {{cert_file: {server.cert}, key_file: {server.key}}}\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    stuck = [exporter.connect() for _ in range(20)]
    for sock in stuck[:10]:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    start = time.monotonic()
    assert over_tls(exporter, server.ca)[0] == 200
    assert time.monotonic() - start < 1
    for sock in stuck:
        sock.close()


def test_basic_auth_guards_every_path_and_follows_the_file(run_exporter: Run, tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  prometheus: {hashed('secret')}\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    for path in ("/", "/metrics", "/-/healthy", "/nothing"):
        status, headers, _ = exporter.get(path)
        assert (status, headers["www-authenticate"]) == (401, "Basic")
    assert exporter.get("/metrics", basic("prometheus", "secret"))[0] == 200
    for wrong in (basic("prometheus", "Secret"), basic("nobody", "secret"), basic("prometheus", ""),
                  "Authorization: Basic !!!", "Authorization: Bearer x", basic("prometheus", "a\0b")):
        assert exporter.get("/metrics", wrong)[0] == 401
    web.write_text(f"basic_auth_users:\n  prometheus: {hashed('changed')}\n")
    assert exporter.get("/metrics", basic("prometheus", "secret"))[0] == 401
    assert exporter.get("/metrics", basic("prometheus", "changed"))[0] == 200
    web.write_text("basic_auth_users: [x]\n")
    assert exporter.get("/metrics", basic("prometheus", "changed"))[0] == 200
    exporter.wait_for_log("is not used: .*web.yml:1: basic_auth_users: must be a mapping")


def test_a_flood_of_wrong_passwords_does_not_delay_the_known_scraper(run_exporter: Run, tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  prometheus: {hashed('secret', 12)}\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    assert exporter.get("/metrics", basic("prometheus", "secret"))[0] == 200
    guesses: list[socket.socket] = []
    for number in range(300):  # more than there may be connections
        sock = exporter.connect()
        sock.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{basic('prometheus', str(number))}\r\n\r\n".encode())
        guesses.append(sock)
    start = time.monotonic()
    assert exporter.get("/metrics", basic("prometheus", "secret"))[0] == 200
    web.write_text(web.read_text() + f"  other: {hashed('secret')}\n")  # nor is it forgotten with a new user
    assert exporter.get("/metrics", basic("prometheus", "secret"))[0] == 200
    assert time.monotonic() - start < 2  # behind the guesses it would be a minute
    for sock in guesses:
        sock.close()


def test_an_unknown_user_costs_as_much_time_as_a_wrong_password_and_a_verified_one_nearly_none() -> None:
    auth = BasicAuth({"known": hashed("right", 10)})

    def seconds(user: str, password: str) -> tuple[float, bool]:
        start = time.thread_time()
        verdict = auth(basic(user, password).removeprefix("Authorization: "))
        allowed = verdict if isinstance(verdict, bool) else verdict()
        return time.thread_time() - start, allowed

    wrong = min(seconds("known", f"wrong{n}")[0] for n in range(3))
    unknown = min(seconds("unknown", f"wrong{n}")[0] for n in range(3))
    assert 0.5 < unknown / wrong < 2
    assert seconds("known", "right")[1] is True
    for number in range(300):  # refused guesses do not push the verified password out
        authentication._VERDICTS[str(number).encode()] = False
    seconds("known", "another wrong one")
    again, allowed = seconds("known", "right")
    assert allowed
    assert again < wrong / 10
    assert len(authentication._VERDICTS) <= 256


def test_users_and_passwords_cannot_be_confused_in_the_cache() -> None:
    same = hashed("bc")
    auth = BasicAuth({"a": same, "ab": same})

    def allowed(user: str, password: str) -> bool:
        verdict = auth(basic(user, password).removeprefix("Authorization: "))
        return verdict if isinstance(verdict, bool) else verdict()

    assert allowed("a", "bc")
    assert not allowed("ab", "c")


@pytest.mark.parametrize(("text", "message"), [
    ("tls_server_config: {cert_file: a.pem}", ":1: tls_server_config.key_file: must name a file"),
    ("tls_server_config:\n  cert_file: a.pem\n  key_file: a.key",
     ":2: tls_server_config.cert_file: cannot use {dir}/a.pem with {dir}/a.key: "),
    ("tls_server_config:\n  cert_file: x\n  key_file: x\n  min_version: SSL3",
     ":4: tls_server_config.min_version: 'SSL3' is not supported: choose from TLS10, TLS11, TLS12, TLS13"),
    ("tls_server_config:\n  certificate: x", ":2: tls_server_config.certificate: not supported: choose from cert_file"),
    ("basic_auth_users:\n  bob: secret", ":2: basic_auth_users.bob: is no bcrypt hash: make one with htpasswd"),
    (f"basic_auth_users:\n  bob: $2y$16${'a' * 53}", ":2: basic_auth_users.bob: cost 16 takes too long, 15 is most"),
    ("basic_auth_user: {}", ":1: basic_auth_user: not supported: choose from tls_server_config"),
    ("http_server_config:\n  headers:\n    Server: x", ":3: http_server_config.headers.Server: not supported"),
    ("http_server_config:\n  headers:\n    X-Frame-Options: \"a\\r\\nb\"",
     ":3: http_server_config.headers.X-Frame-Options: 'a\\r\\nb' is no header"),
    ("tls_server_config: {a: [b, {c: }]", "not YAML"),
])
def test_a_web_configuration_that_cannot_be_used_ends_it_with_2(tmp_path: Path, text: str, message: str) -> None:
    web = tmp_path / "web.yml"
    web.write_text(text)
    done = subprocess.run((*PROGRAM, *FLAGS, f"--web.config.file={web}"), capture_output=True, text=True, timeout=20,
                          check=False, env={**os.environ})
    assert done.returncode == 2
    assert f"{web}" in done.stderr
    assert message.format(dir=tmp_path) in done.stderr if "{dir}" in message else message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_go_names_of_cipher_suites_are_understood(run_exporter: Run, certify: Certify, tmp_path: Path) -> None:
    server = certify("127.0.0.1")
    web = tmp_path / "web.yml"
    web.write_text(
        f"tls_server_config:\n  cert_file: {server.cert}\n  key_file: {server.key}\n  cipher_suites:\n"
        "  - TLS_AES_128_GCM_SHA256\n  - TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")
    context = client_context(server.ca, insecure=False)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with context.wrap_socket(exporter.connect(), server_hostname="127.0.0.1") as sock:
        assert sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"  # type: ignore[index]


def test_a_file_that_is_emptied_lost_or_turned_into_a_pipe_opens_no_door_and_holds_nobody_up(
    run_exporter: Run, tmp_path: Path
) -> None:
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users:\n  prometheus: {hashed('secret')}\n")
    exporter = run_exporter(*FLAGS, f"--web.config.file={web}")

    def asked() -> tuple[int, int]:
        return exporter.get("/metrics")[0], exporter.get("/metrics", basic("prometheus", "secret"))[0]

    for text in ("", "basic_auth_users:\n", "http_server_config: {}\n"):
        web.write_text(text)
        assert asked() == (401, 200)
    web.unlink()
    assert asked() == (401, 200)
    os.mkfifo(web)
    start = time.monotonic()
    assert asked() == (401, 200)
    assert time.monotonic() - start < 2
    exporter.wait_for_log("is not used: .*web.yml: basic_auth_users: removed: restart the exporter")
    exporter.wait_for_log("is not used: .*web.yml: is gone, or no regular file")


@pytest.mark.parametrize(("more", "message"), [
    ('cipher_suites: ["TLS_A_WITH_\\0"]', ":4: tls_server_config.cipher_suites: OpenSSL knows none of"),
    ("{min_version: TLS13, max_version: TLS12}", "max_version: is less than min_version, TLS13"),
    ("max_version: TLS11", "max_version: is less than min_version, TLS12"),
])
def test_tls_settings_that_leave_nothing_to_agree_on_are_refused(
    certify: Certify, tmp_path: Path, more: str, message: str
) -> None:
    server = certify("127.0.0.1")
    web = tmp_path / "web.yml"
    lines = more.strip("{}").split(", ") if more.startswith("{") else [more]
    web.write_text("\n".join(
        ("tls_server_config:", f"  cert_file: {server.cert}", f"  key_file: {server.key}", *(f"  {x}" for x in lines))))
    done = subprocess.run((*PROGRAM, *FLAGS, f"--web.config.file={web}"), capture_output=True, text=True, timeout=20,
                          check=False)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (2, True, False)
