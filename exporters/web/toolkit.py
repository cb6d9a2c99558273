"""``--web.config.file`` in the format of Prometheus's exporter-toolkit, read again whenever a file of it changes.

A changed file that cannot be used is logged and the last good configuration stays: while a certificate is rotated,
certificate and key do not match for a moment.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from k3observe.exporters import yamlfile
from k3observe.exporters.web.http import Authenticate
from k3observe.exporters.yamlfile import Node

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1, "TLS11": ssl.TLSVersion.TLSv1_1, "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH = {
    "": ssl.CERT_NONE, "NoClientCert": ssl.CERT_NONE, "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TLS_KEYS = (
    "cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version", "cipher_suites",
    "prefer_server_cipher_suites")
_HEADERS = (
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options",
    "X-XSS-Protection")


class WebConfigError(Exception):
    """A configuration that cannot be used; the message begins with file and line."""


class _Loaded(NamedTuple):
    tls: ssl.SSLContext | None
    authenticate: Authenticate | None
    headers: tuple[tuple[str, str], ...]
    files: tuple[Path, ...]


class WebConfig:
    """TLS, users and headers as the files say now. Raises WebConfigError when they cannot be used at the start."""

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self._path = path
        self._log = log
        self._loaded = _load(path)
        self._seen = _stamps(self._loaded.files)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for a new connection; None serves without TLS."""
        return self._current().tls

    def authenticate(self, header: str) -> bool | Callable[[], bool]:
        """Judge an Authorization header; without users everyone is allowed."""
        judge = self._current().authenticate
        return True if judge is None else judge(header)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers to add to each response."""
        return self._loaded.headers

    def _current(self) -> _Loaded:
        stamps = _stamps(self._loaded.files)
        if stamps != self._seen:
            self._seen = stamps
            try:
                for path in self._loaded.files:
                    if not path.is_file():  # to open a pipe could wait for ever
                        raise WebConfigError(f"{path}: is gone, or no regular file")
                loaded = _load(self._path)
                if (loaded.tls is None) != (self._loaded.tls is None):
                    raise WebConfigError(f"{self._path}: tls_server_config: added or removed: restart the exporter")
                if loaded.authenticate is None and self._loaded.authenticate is not None:
                    # The file may just be written anew: what is not whole yet must not open the door.
                    raise WebConfigError(f"{self._path}: basic_auth_users: removed: restart the exporter")
                self._loaded = loaded
                self._seen = _stamps(loaded.files)
                self._log.info("read %s again", self._path)
            except WebConfigError as error:
                self._log.error("the changed web configuration is not used: %s", error)
        return self._loaded


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    def stamp(path: Path) -> tuple[int, int, int] | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    return tuple(stamp(path) for path in files)


def _load(path: Path) -> _Loaded:
    try:
        root = yamlfile.load(path)
    except yamlfile.YamlError as error:
        raise WebConfigError(str(error)) from None
    sections = _mapping(path, "", root, ("tls_server_config", "basic_auth_users", "http_server_config"))
    tls: ssl.SSLContext | None = None
    tls_files: tuple[Path, ...] = ()
    if "tls_server_config" in sections:
        tls, tls_files = _tls(path, sections["tls_server_config"])
    judge = _users(path, sections["basic_auth_users"]) if "basic_auth_users" in sections else None
    headers = _extra_headers(path, sections["http_server_config"]) if "http_server_config" in sections else ()
    return _Loaded(tls, judge, headers, (path, *tls_files))


def _mapping(path: Path, field: str, node: Node, known: tuple[str, ...] | None = None) -> dict[str, Node]:
    if node.value == "":
        return {}
    if not isinstance(node.value, dict):
        raise WebConfigError(f"{path}:{node.line}: {field or 'the file'}: must be a mapping")
    for key, child in node.value.items():
        if known is not None and key not in known:
            name = f"{field}.{key}" if field else key
            raise WebConfigError(f"{path}:{child.line}: {name}: not supported: choose from {', '.join(known)}")
    return node.value


def _text(path: Path, field: str, node: Node) -> str:
    if not isinstance(node.value, str):
        raise WebConfigError(f"{path}:{node.line}: {field}: must be text")
    return node.value


def _tls(path: Path, node: Node) -> tuple[ssl.SSLContext, tuple[Path, ...]]:
    fields = _mapping(path, "tls_server_config", node, _TLS_KEYS)

    def get(key: str) -> str:
        return _text(path, f"tls_server_config.{key}", fields[key]) if key in fields else ""

    def fail(key: str, problem: str) -> WebConfigError:
        line = fields[key].line if key in fields else node.line
        return WebConfigError(f"{path}:{line}: tls_server_config.{key}: {problem}")

    def choose(key: str, choices: Mapping[str, object]) -> str:
        if get(key) not in choices:
            raise fail(key, f"{get(key)!r} is not supported: choose from {', '.join(filter(None, choices))}")
        return get(key)

    for key in ("cert_file", "key_file"):
        if not get(key):
            raise fail(key, "must name a file")
    certificate, key_file = path.parent / get("cert_file"), path.parent / get("key_file")
    files = [certificate, key_file]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[choose("min_version", _VERSIONS) if get("min_version") else "TLS12"]
    if get("max_version"):
        context.maximum_version = _VERSIONS[choose("max_version", _VERSIONS)]
        if context.maximum_version < context.minimum_version:
            raise fail("max_version", f"is less than min_version, {get('min_version') or 'TLS12'}")
    try:
        context.load_cert_chain(certificate, key_file, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise fail("cert_file", f"cannot use {certificate} with {key_file}: {error}") from None
    mode = _CLIENT_AUTH[choose("client_auth_type", _CLIENT_AUTH)]
    if get("client_ca_file"):
        if mode is ssl.CERT_NONE:
            raise fail("client_ca_file", "has no effect: set client_auth_type to RequireAndVerifyClientCert")
        authority = path.parent / get("client_ca_file")
        files.append(authority)
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise fail("client_ca_file", f"cannot use {authority}: {error}") from None
    elif mode is not ssl.CERT_NONE:
        raise fail("client_auth_type", "client_ca_file must name the authority of the clients")
    context.verify_mode = mode
    if "cipher_suites" in fields:
        _set_ciphers(path, context, fields["cipher_suites"])
    return context, tuple(files)


def _set_ciphers(path: Path, context: ssl.SSLContext, node: Node) -> None:
    """Go's names of TLS 1.2 suites become OpenSSL's; those of TLS 1.3 are always on, as in Go."""
    where = f"{path}:{node.line}: tls_server_config.cipher_suites"
    if not isinstance(node.value, list):
        raise WebConfigError(f"{where}: must be a list")
    names = [_text(path, "tls_server_config.cipher_suites", item) for item in node.value]
    older = [name for name in names if "_WITH_" in name]
    openssl = [
        name.removeprefix("TLS_").removeprefix("RSA_WITH_").removesuffix("_CBC_SHA256")
        .replace("_WITH_", "_").replace("AES_128", "AES128").replace("AES_256", "AES256")
        .replace("POLY1305_SHA256", "POLY1305").replace("_CBC", "").replace("_", "-")
        + ("-SHA256" if name.endswith("_CBC_SHA256") else "")
        for name in older
    ]
    try:
        if openssl:
            context.set_ciphers(":".join(openssl))
    except (ssl.SSLError, ValueError):
        raise WebConfigError(f"{where}: OpenSSL knows none of {', '.join(older)}") from None


def _users(path: Path, node: Node) -> Authenticate | None:
    users = _mapping(path, "basic_auth_users", node)
    if not users:
        return None
    try:
        from k3observe.exporters.web.authentication import MOST_COST, BasicAuth, cost_of
    except ModuleNotFoundError:
        raise WebConfigError(
            f"{path}:{node.line}: basic_auth_users: needs bcrypt: pip install 'k3observe[web]'") from None
    hashes: dict[str, str] = {}
    for user, value in users.items():
        hashes[user] = _text(path, f"basic_auth_users.{user}", value)
        cost = cost_of(hashes[user])
        if cost is None or cost > MOST_COST:
            problem = "is no bcrypt hash" if cost is None else f"cost {cost} takes too long, {MOST_COST} is most"
            raise WebConfigError(
                f"{path}:{value.line}: basic_auth_users.{user}: {problem}: make one with htpasswd -nBC 10 {user}")
    return BasicAuth(hashes)


def _extra_headers(path: Path, node: Node) -> tuple[tuple[str, str], ...]:
    fields = _mapping(path, "http_server_config", node, ("http2", "headers"))
    found = []
    for name, value in (_mapping(path, "http_server_config.headers", fields["headers"], _HEADERS)
                        if "headers" in fields else {}).items():
        text = _text(path, f"http_server_config.headers.{name}", value)
        if not text.isprintable() or not text.isascii():
            raise WebConfigError(f"{path}:{value.line}: http_server_config.headers.{name}: {text!r} is no header")
        found.append((name, text))
    return tuple(found)
