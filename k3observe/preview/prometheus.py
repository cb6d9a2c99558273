"""What the preview asks a Prometheus: instant and range queries, bounded in time and size."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 32 << 20
MAX_SERIES = 400


class QueryError(Exception):
    """A query failed; the message is Prometheus' own where it sent one."""


class UnreachableError(Exception):
    """There is no Prometheus at the address."""


@dataclass(frozen=True, slots=True)
class Series:
    """Labels, and values in step (None where there is none); of an instant query one value."""

    labels: Mapping[str, str]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The time shown, in Unix seconds, and the distance of its points."""

    start: float
    end: float
    step: float

    @property
    def times(self) -> list[float]:
        """The points."""
        return [self.start + index * self.step for index in range(int((self.end - self.start) / self.step + 1e-6) + 1)]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """An address, such as ``http://127.0.0.1:9090``, and the seconds that a query may take."""

    url: str
    timeout: float = 30.0

    def at(self, expr: str, time: float) -> list[Series]:
        """The values of an expression at one time."""
        found = self._ask("query", {"query": expr, "time": f"{time:.3f}"})
        if found["resultType"] == "scalar":
            return [Series({}, (_number(found["result"][1]),))]
        return [Series(_labels(item["metric"]), (_number(item["value"][1]),)) for item in found["result"][:MAX_SERIES]]

    def over(self, expr: str, span: Span) -> list[Series]:
        """The values of an expression over a time, one for each of ``span.times``."""
        asked = {"query": expr, "start": f"{span.start:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:g}"}
        count = len(span.times)
        found = []
        for item in self._ask("query_range", asked)["result"][:MAX_SERIES]:
            values: list[float | None] = [None] * count
            for time, value in item["values"]:
                index = round((float(time) - span.start) / span.step)
                if 0 <= index < count:
                    values[index] = _number(value)
            found.append(Series(_labels(item["metric"]), tuple(values)))
        return found

    def label_values(self, selector: str, label: str, span: Span) -> list[str]:
        """The values of a label among the series of a selector."""
        asked = {"match[]": selector, "start": f"{span.start:.3f}", "end": f"{span.end:.3f}"}
        return [str(value) for value in self._ask(f"label/{urllib.parse.quote(label)}/values", asked)]

    def _ask(self, path: str, parameters: Mapping[str, str]) -> Any:
        query = urllib.parse.urlencode(parameters)
        request = urllib.request.Request(f"{self.url.rstrip('/')}/api/v1/{path}?{query}")  # noqa: S310 - http(s), checked
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # noqa: S310
                body = answer.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise QueryError(_reason(error.read(1 << 16)) or f"HTTP {error.code}") from None
        except (OSError, ValueError) as error:
            raise UnreachableError(str(getattr(error, "reason", error))) from None
        if len(body) > MAX_BYTES:
            raise QueryError(f"the answer is larger than {MAX_BYTES >> 20} MiB")
        try:
            return json.loads(body)["data"]
        except (ValueError, KeyError, TypeError):
            raise UnreachableError("the answer is not that of a Prometheus") from None


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _labels(found: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _number(text: object) -> float | None:
    """A sample's value; NaN and the infinities are none, for neither JSON nor a chart knows them."""
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
