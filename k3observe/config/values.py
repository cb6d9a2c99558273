"""The small types a configuration is made of: durations, quantities, names, addresses."""

from __future__ import annotations

import re
from email.utils import getaddresses
from ipaddress import IPv6Address
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_FRACTION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_LONGEST = 3650 * 86400
_LEAST, _MOST = 1e-9, 1e15


class Duration(str):
    """A duration as Prometheus spells it (``90s``, ``1h30m``)."""

    __slots__ = ()

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        match = _DURATION.fullmatch(self)
        if not match:
            return 0.0
        units = ("w", "d", "h", "m", "s", "ms")
        return sum(int(n) * _UNITS[u] for n, u in zip(match.groups(), units, strict=True) if n)

    @classmethod
    def of(cls, seconds: float) -> Duration:
        """Spell seconds with the largest units that divide them: ``of(5400)`` is ``1h30m``."""
        left, text = round(seconds * 1000), ""
        for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            count, left = divmod(left, size)
            text += f"{count}{unit}" if count else ""
        return cls(text or "0s")

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Read ``5m``; raises ValueError."""
        if isinstance(value, str) and 0 < len(value) <= 40 and _DURATION.fullmatch(value):
            found = cls(value)
            if found.seconds > _LONGEST:
                raise ValueError("is longer than 10 years")
            return found
        number = isinstance(value, int | float) and not isinstance(value, bool)
        hint = f"write {value}s" if number else "write e.g. 90s or 1h30m"
        raise ValueError(f"is no duration; {hint}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": r"^(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$",
            "minLength": 2,
            "examples": ["30s", "5m", "1h30m"],
        }


def quantity(value: object) -> float:
    """Read a number, a share (``0.5%``) or a duration (``30s``) into a number; raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("is no number")
    if isinstance(value, int | float):
        number = float(value) if abs(value) <= _MOST or value != value else float("inf")
    elif isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value, re.ASCII):
        number = float(value[:-1]) / 100
    elif isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        number = float(match[1]) * _UNITS[match[2]]
    else:
        raise ValueError("is no number, share (0.5%) or duration (30s)")
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("must be finite, and at most 1e15")
    if not (number == 0 or _LEAST <= abs(number) <= _MOST):
        raise ValueError("must be 0, or between 1e-9 and 1e15 in size")
    return number


def _matches(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(what)
        return value

    return AfterValidator(check)


def _target(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is no address; write host:port in quotes")
    if "://" in value or "/" in value:
        parts = urlsplit(value if "://" in value else f"//{value}")
        path = f", the path {parts.path} goes to metrics_path" if parts.path else ""
        scheme = f", the scheme goes to scheme: {parts.scheme}" if parts.scheme else ""
        raise ValueError(
            f"is a host and port without scheme or path; write {parts.netloc or 'host:port'!r}{scheme}{path}")
    match = re.fullmatch(
        r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}))(?::(\d{1,5}))?", value, re.ASCII)
    if not match or (match[2] and not 0 < int(match[2]) < 65536):
        raise ValueError("is no host:port")
    if not match[2]:
        raise ValueError(f"has no port; write e.g. {value}:8000")
    if match[1]:
        try:
            IPv6Address(match[1])
        except ValueError:
            raise ValueError("is no IPv6 address in brackets; write e.g. [2001:db8::1]:8000") from None
    return value


DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


def _weekdays(value: str) -> str:
    days = value.lower().split(":")
    if len(days) > 2 or not all(day in DAYS for day in days):
        raise ValueError("is no weekday or range; write saturday or monday:friday")
    if DAYS.index(days[0]) > DAYS.index(days[-1]):
        raise ValueError(f"runs backwards, weeks start on sunday; write {days[0]} and {days[1]} as two items")
    return value.lower()


def _time_range(value: str) -> str:
    match = re.fullmatch(r"(\d\d:[0-5]\d)-(\d\d:[0-5]\d)", value, re.ASCII)
    if not match or match[2] > "24:00":
        raise ValueError("is no time of day; write 02:00-06:00")
    if match[1] >= match[2]:
        raise ValueError(f"runs over midnight; write {match[1]}-24:00 and 00:00-{match[2]} as two items")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            "is no time zone that this machine knows; write e.g. Asia/Shanghai, or install tzdata"
        ) from None
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError("is no http(s) URL") from None
    odd = re.search(r"[^!-~]|[\"'<>\\^`{|}]|%(?![0-9A-Fa-f]{2})", value)
    if parts.scheme not in ("http", "https") or not parts.hostname or odd or port == 0:
        raise ValueError("is no http(s) URL" + ("; write other characters as %XX" if odd else ""))
    if parts.username or parts.password:
        raise ValueError("carries a password; secrets are given by file only")
    return value


def _port(value: int) -> int:
    if not 0 < value < 65536:
        raise ValueError("is no port (1 to 65535)")
    return value


def _version(value: object) -> str:
    from k3observe.catalogue.version import Version

    if isinstance(value, int | float) and not isinstance(value, bool):
        other = f', or "{value}0" if that is meant' if re.fullmatch(r"\d+\.\d", str(value)) else ""
        raise ValueError(f'must stand in quotes: YAML reads 0.10 as the number 0.1; write "{value}"{other}')
    text = str(value).strip()
    if text.lower() in _TAGS:
        raise ValueError("is a tag that moves, no version; write what `k3observe doctor http://HOST:PORT/metrics` "
                         "finds, or leave version out to take the newest known")  # fmt: skip
    try:
        if not re.fullmatch(r"[!-~]{1,64}", text):
            raise ValueError
        Version.parse(text)
    except ValueError:
        raise ValueError("is no version; write e.g. \"0.33\" in quotes") from None
    return text


_TAGS = frozenset({"latest", "nightly", "main", "master", "stable", "dev", "head"})
def _mail(value: str) -> str:
    found = getaddresses([value])
    if not found or not all(re.fullmatch(r"[^@\s<>,]+@[^@\s<>,]+", address) for _, address in found):
        raise ValueError("is no mail address; write ops@example.com, several with commas")
    return value


_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff"
_CONTROLS = _UNPRINTABLE.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f")
_KUBERNETES = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAME = "must be letters, digits, '.', '_' or '-' (at most 63), since it becomes a label and a file name"

Count = Annotated[int, Field(ge=1, le=10_000_000)]
Quantity = Annotated[float, BeforeValidator(quantity, json_schema_input_type=float | str)]
Name = Annotated[str, _matches(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", _NAME)]
LabelName = Annotated[str, _matches(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", "is no label name")]
LabelValue = Annotated[
    str, _matches(rf"[^{_UNPRINTABLE}]{{0,256}}", "is no label value (one line, at most 256 characters)")
]
Line = Annotated[str, _matches(rf"[^{_UNPRINTABLE}]{{1,256}}", "must be one line of 1 to 256 characters")]
Verbatim = Annotated[
    Line, _matches(r"(?:(?!\{\{).)*", "holds {{, which Alertmanager reads as a template; write the text itself")
]
Mail = Annotated[Verbatim, AfterValidator(_mail)]
Wording = Annotated[
    str, _matches(rf"[^{_CONTROLS}]{{0,4096}}", "must be text without control characters, at most 4096 characters")
]
KubernetesKey = Annotated[str, _matches(
    rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_KUBERNETES}", "is no key of a Kubernetes label")]
KubernetesValue = Annotated[str, _matches(rf"(?:{_KUBERNETES})?", "is no value of a Kubernetes label: "
                                          "letters, digits, '.', '_' or '-', at most 63")]
DnsName = Annotated[str, _matches(r"(?=.{1,253}$)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})\.)*[A-Za-z0-9_-]{1,63}\.?",
                                  "is no DNS name")]
MetricName = Annotated[str, _matches(r"[A-Za-z_:][A-Za-z0-9_:]*", "is no metric name")]
Target = Annotated[str, BeforeValidator(_target, json_schema_input_type=str)]
Url = Annotated[str, AfterValidator(_url)]
Weekdays = Annotated[str, AfterValidator(_weekdays)]
TimeRange = Annotated[str, AfterValidator(_time_range)]
Zone = Annotated[str, AfterValidator(_zone)]
Port = Annotated[int, AfterValidator(_port)]
AbsolutePath = Annotated[
    str, _matches(rf"(?!.*/\.\.(?:/|$))/[^{_UNPRINTABLE}]{{1,1023}}", "must be an absolute path, without ..")
]
MountedPath = Annotated[
    AbsolutePath, _matches(r"/[^:,]*[^:,/]", "is mounted into a container and may hold no colon or comma, nor end in /")
]
WatchedFiles = Annotated[AbsolutePath, _matches(
    r"(?:/[^*/]+)*/[^/]+\.(?:json|yml|yaml)", "must end in .json, .yml or .yaml, with * in the file name only")]
HttpPath = Annotated[str, _matches(r"/[A-Za-z0-9._~/\-]*", "must start with / and be a plain path")]
HeaderName = Annotated[str, _matches(r"[A-Za-z][A-Za-z0-9-]{0,63}", "is no name of an HTTP header")]
Image = Annotated[str, _matches(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}", "is no image, e.g. registry.example.com/k3:1.0")]
EngineVersion = Annotated[str, BeforeValidator(_version, json_schema_input_type=str)]
