"""The real exporter process, a fake engine on a real socket, and certificates made for the test."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.exporters.exporter_process import PROGRAM, Certificate, Engine, Exporter


@pytest.fixture
def run_exporter() -> Iterator[Callable[..., Exporter]]:
    """Start the exporter with some flags (and variables) on a free port; it is ended after the test."""
    started: list[Exporter] = []

    def run(*flags: str, program: tuple[str, ...] = PROGRAM, **variables: str) -> Exporter:
        process = subprocess.Popen(
            (*program, "--web.listen-address=127.0.0.1:0", *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **variables})
        exporter = Exporter(process)
        started.append(exporter)
        exporter.port = int(exporter.wait_for_log(r"listening on 127\.0\.0\.1:(\d+)")[1])
        return exporter

    yield run
    for exporter in started:
        if exporter.process.poll() is None:
            exporter.process.send_signal(signal.SIGKILL)
        exporter.process.communicate()


@pytest.fixture
def run_engine() -> Iterator[Callable[..., Engine]]:
    """Start a fake engine, with TLS when a context is given."""
    started: list[Engine] = []

    def run(body: bytes = b"", context: ssl.SSLContext | None = None) -> Engine:
        engine = Engine(context)
        engine.body = body
        started.append(engine)
        return engine

    yield run
    for engine in started:
        engine.close()


@pytest.fixture(scope="session")
def certify(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Certificate]:
    """Make certificates for a host name or address, all signed by one authority."""
    folder = tmp_path_factory.mktemp("certificates")
    now = datetime.datetime.now(datetime.timezone.utc)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
                .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
                .not_valid_after(now + datetime.timedelta(days=1)))

    authority = builder(ca_name, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(ca_key, hashes.SHA256())
    ca = folder / "ca.pem"
    ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made = 0

    def make(host: str) -> Certificate:
        nonlocal made
        made += 1
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        certificate = builder(subject, key).add_extension(
            x509.SubjectAlternativeName([name]), critical=False).sign(ca_key, hashes.SHA256())
        files = Certificate(folder / f"{made}.pem", folder / f"{made}.key", ca)
        files.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return files

    return make
