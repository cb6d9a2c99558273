"""The bridge's configuration: which robots there are, read from YAML with the line of every mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from k3observe.config.errors import ConfigError, Path, Problem, did_you_mean
from k3observe.config.source import MAX_BYTES, Located, load_yaml
from k3observe.notify import credentials
from k3observe.notify.message import EVERYBODY, Mention
from k3observe.notify.platforms import PLATFORMS
from k3observe.notify.robot import Platform
from k3observe.notify.texts import WORDS

MAX_ROBOTS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ROBOT = frozenset({"type", "token_file", "secret_file", "base_url", "language", "timezone", "mention"})
_MENTION = frozenset({"users", "label", "owners", "severities"})
_TAKEN = frozenset({"metrics"})


@dataclass(frozen=True, slots=True)
class Robot:
    """One robot: a group on a platform. ``base_url`` has no slash at its end."""

    name: str
    platform: Platform
    token_file: FilePath
    secret_file: FilePath | None
    base_url: str
    language: str
    zone: ZoneInfo
    mention: Mention


def load(path: FilePath) -> tuple[Robot, ...]:
    """Read a configuration file and see that each secret can be read; raises ConfigError with all problems."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(f"cannot be read: {error.strerror}", file=str(path))]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem("is not UTF-8", file=str(path), fix="save it as UTF-8")]) from None
    reader = _Reader(load_yaml(text, str(path)), path.parent)
    robots = reader.robots()
    if reader.problems:
        raise ConfigError(reader.problems)
    return robots


class _Reader:
    """Collects problems while it reads, so that one run shows them all."""

    def __init__(self, document: Located, folder: FilePath) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._folder = folder

    def robots(self) -> tuple[Robot, ...]:
        top = self._mapping((), self._document.data, frozenset({"robots"}))
        entries = self._mapping(("robots",), top.get("robots"), None)
        if not entries and not self.problems:
            self._problem(("robots",), "names no robot", fix="write robots: {ops: {type: ..., token_file: ...}}")
        if len(entries) > MAX_ROBOTS:
            self._problem(("robots",), "are too many", len(entries), f"at most {MAX_ROBOTS}; start a second bridge")
            return ()
        return tuple(robot for name, entry in entries.items() if (robot := self._robot(name, entry)))

    def _robot(self, name: str, entry: object) -> Robot | None:
        path: Path = ("robots", name)
        if not _NAME.fullmatch(name) or name in _TAKEN:
            self._problem(path, "is no name for a robot", name, "it becomes a path: letters, digits, '.', '_', '-'")
        fields = self._mapping(path, entry, _ROBOT)
        if not fields:
            return None
        platform = self._platform((*path, "type"), fields.get("type"))
        if platform is None:
            return None
        token_file = self._file((*path, "token_file"), fields.get("token_file"))
        secret_file = self._file((*path, "secret_file"), fields["secret_file"]) if "secret_file" in fields else None
        if secret_file and not platform.signs:
            self._problem((*path, "secret_file"), f"is not used: {platform.name} does not sign", fix="leave it out")
        elif token_file and (secret_file or "secret_file" not in fields):
            try:
                credentials.read(platform, token_file, secret_file)
            except credentials.SecretError as error:
                field = "secret_file" if error.file == secret_file else "token_file"
                self._problem((*path, field), str(error))
        base_url = self._url((*path, "base_url"), fields.get("base_url", platform.base_url))
        language = fields.get("language", "en")
        if language not in WORDS:
            self._problem((*path, "language"), "is not spoken", language, "one of " + ", ".join(WORDS))
        zone = self._zone((*path, "timezone"), fields.get("timezone", "UTC"))
        mention = self._mention((*path, "mention"), fields.get("mention", {"users": []}), platform)
        if self.problems or token_file is None or zone is None:
            return None
        return Robot(name, platform, token_file, secret_file, base_url, str(language), zone, mention)

    def _platform(self, path: Path, value: object) -> Platform | None:
        platform = PLATFORMS.get(value) if isinstance(value, str) else None
        if platform is None:
            what = "is missing" if value is None else "is no platform"
            self._problem(path, what, value, did_you_mean(str(value or ""), PLATFORMS))
        return platform

    def _file(self, path: Path, value: object) -> FilePath | None:
        if not isinstance(value, str) or not value or "\n" in value or "\0" in value:
            # what stands here instead of a path may be the secret itself: it is not shown
            self._problem(path, "is missing" if value is None else "is no path", fix="name the file with the secret")
            return None
        if "://" in value:
            self._problem(path, "is a URL", fix="write it into a file and name the file here")
            return None
        return self._folder / value

    def _url(self, path: Path, value: object) -> str:
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            good = bool(parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
        except ValueError:
            parts, good = None, False
        if not good or not isinstance(value, str) or parts is None or re.search(r"[\s\"'<>\\]", value):
            self._problem(path, "is no http(s) URL", fix="for example https://oapi.dingtalk.com")
        elif parts.query or parts.fragment or parts.username or parts.password:
            self._problem(path, "carries more than an address", fix="the token belongs into token_file")
        else:
            return value.rstrip("/")
        return ""

    def _zone(self, path: Path, value: object) -> ZoneInfo | None:
        try:
            return ZoneInfo(value if isinstance(value, str) else "")
        except (ValueError, OSError, KeyError):
            self._problem(path, "is no time zone this host knows", value,
                          "a name such as Asia/Shanghai; a small image may need its package tzdata")  # fmt: skip
        return None

    def _mention(self, path: Path, value: object, platform: Platform) -> Mention:
        fields = self._mapping(path, value, _MENTION)
        label = fields.get("label", "")
        if not isinstance(label, str) or (label and not _LABEL.fullmatch(label)):
            self._problem((*path, "label"), "is no label name", label)
        owners = self._mapping((*path, "owners"), fields["owners"], None) if "owners" in fields else {}
        if owners and not label:
            self._problem((*path, "owners"), "need the label that names an owner", fix="add label: owner")
        return Mention(
            users=self._users((*path, "users"), fields.get("users", []), platform),
            label=str(label),
            owners={name: self._users((*path, "owners", name), users, platform) for name, users in owners.items()},
            severities=frozenset(self._texts((*path, "severities"), fields.get("severities", []))),
        )

    def _users(self, path: Path, value: object, platform: Platform) -> tuple[str, ...]:
        users = self._texts(path, [value] if isinstance(value, str) else value)
        for user in users:
            if user != EVERYBODY and not user.isascii():
                self._problem(path, "is no id", user, "ids are ASCII")
            elif problem := platform.mention_problem(user):
                self._problem(path, problem, user)
        return users

    def _texts(self, path: Path, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            self._problem(path, "is no list of texts", value, 'write ["..."]; numbers in quotes')
            return ()
        return tuple(value)

    def _mapping(self, path: Path, value: object, known: frozenset[str] | None) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._problem(path, "is missing" if value is None else "is no mapping", fix="see docs/notify.md")
            return {}
        for name in value:
            if known is not None and name not in known:
                self._problem((*path, name), "is not known here", fix=did_you_mean(name, known))
        return value

    def _problem(self, path: Path, what: str, value: object = None, fix: str = "") -> None:
        self.problems.append(self._document.place(Problem(what, path, value, fix)))
