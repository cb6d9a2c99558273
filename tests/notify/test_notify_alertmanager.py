"""A real Alertmanager sends through the bridge: grouped, in Chinese, firing and resolved, over TLS with a password."""

from __future__ import annotations

import json
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.request import Request, urlopen

import bcrypt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from k3observe.drill.servers import alertmanager
from tests.notify.robot_fakes import Bridge, Platforms, bridge, until, write_config

CHINESE = "language: zh-CN\ntimezone: Asia/Shanghai\nmention: {label: owner}"


def configuration(folder: Path, receiver: dict[str, object]) -> Path:
    """Write Alertmanager's configuration with one route to the bridge."""
    route = {"receiver": "ops", "group_by": ["service"], "group_wait": "1s", "group_interval": "1s"}
    path = folder / "alertmanager.yml"
    path.write_text(json.dumps({"route": route, "receivers": [{"name": "ops", "webhook_configs": [receiver]}]}))
    return path


def tell(url: str, names: dict[str, str], ended: bool) -> None:
    """Tell Alertmanager about alerts, by name and summary, as Prometheus does."""
    now = datetime.now(timezone.utc)
    alerts = [
        {
            "labels": {"alertname": name, "severity": "critical", "action": "replace_device", "service": "kimi-k3",
                       "owner": "zhangsan"},
            "annotations": {"summary": summary, "value": "7", "threshold": "8"},
            # an alert older than group_wait would be sent at once, without the rest of its group
            **({} if ended else {"startsAt": now.isoformat()}),
            "endsAt": (now if ended else now + timedelta(minutes=5)).isoformat(),
        }
        for name, summary in names.items()
    ]  # fmt: skip
    body = json.dumps(alerts).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{url}/api/v2/alerts", data=body, headers=headers), timeout=10) as answer:
        assert answer.status == 200


def test_alertmanager_delivers_a_group_as_one_chinese_message_and_its_resolution_as_another(
    fake: Platforms, tmp_path: Path, alertmanager_bin: Path
) -> None:
    names = {"AcceleratorLost": "10.0.0.1 掉卡：8 张只剩 7 张", "EngineDown": "推理引擎 10.0.0.1:8000 失联"}
    with (
        bridge(write_config(tmp_path, fake.url, {"wecom": CHINESE})) as running,
        alertmanager(alertmanager_bin, configuration(tmp_path, {"url": f"{running.url}/wecom"}), tmp_path) as server,
    ):
        tell(server.url, names, ended=False)
        firing = fake.wait(1)[0].text
        assert "【告警 2】AcceleratorLost, EngineDown · kimi-k3" in firing
        assert "级别：严重 | 建议动作：更换故障卡" in firing
        assert "掉卡：8 张只剩 7 张" in firing
        assert "推理引擎 10.0.0.1:8000 失联" in firing
        assert firing.endswith("<@zhangsan>")
        tell(server.url, names, ended=True)
        resolved = fake.wait(2)[1].text
        assert "【恢复 2】" in resolved
        assert "<@" not in resolved
        assert not fake.refused


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_alertmanager_tries_again_while_the_bridge_is_away(
    fake: Platforms, tmp_path: Path, alertmanager_bin: Path
) -> None:
    config = write_config(tmp_path, fake.url)
    with bridge(config) as running:
        port = running.port
    receiver: dict[str, object] = {"url": f"http://127.0.0.1:{port}/feishu"}
    with alertmanager(alertmanager_bin, configuration(tmp_path, receiver), tmp_path) as server:
        tell(server.url, {"EngineDown": "engine is down"}, ended=False)
        log = tmp_path / "alertmanager.log"
        until(lambda: "refused" in log.read_text(), 15, log.read_text)
        with bridge(config, "--web.listen-address", f"127.0.0.1:{port}"):
            assert "engine is down" in fake.wait(1, 30)[0].text


def web_config(folder: Path) -> Path:
    """Write a certificate for 127.0.0.1 and a web configuration with the user ``am``, password ``pass``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(hours=1))
    certificate = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False).sign(
        key, hashes.SHA256()
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    )
    path = folder / "web.yml"
    hashed = bcrypt.hashpw(b"pass", bcrypt.gensalt(4)).decode()
    tls = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"
    path.write_text(f"{tls}\nbasic_auth_users: {{am: '{hashed}'}}\n")
    return path


def code(running: Bridge, folder: Path, path: str, authorization: str = "") -> int:
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    request = Request(f"https://localhost:{running.port}{path}", headers={"Authorization": authorization})
    try:
        with urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


@pytest.mark.parametrize("toolset", ["3.5"], indirect=True)
def test_alertmanager_delivers_over_tls_with_a_password(
    fake: Platforms, tmp_path: Path, alertmanager_bin: Path
) -> None:
    config = write_config(tmp_path, fake.url)
    with bridge(config, "--web.config.file", str(web_config(tmp_path))) as running:
        assert code(running, tmp_path, "/-/healthy") == 401
        assert code(running, tmp_path, "/-/healthy", "Basic YW06cGFzcw==") == 200
        (tmp_path / "password").write_text("pass")
        receiver = {
            "url": f"https://localhost:{running.port}/feishu",
            "http_config": {
                "tls_config": {"ca_file": str(tmp_path / "cert.pem")},
                "basic_auth": {"username": "am", "password_file": str(tmp_path / "password")},
            },
        }
        with alertmanager(alertmanager_bin, configuration(tmp_path, receiver), tmp_path) as server:
            tell(server.url, {"EngineDown": "engine is down"}, ended=False)
            assert "engine is down" in fake.wait(1)[0].text
