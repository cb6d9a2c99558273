"""The Prometheus that reads the bundle, and where it writes samples to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from k3observe.catalogue.version import Version
from k3observe.config.errors import FieldError
from k3observe.config.section import Section
from k3observe.config.values import (
    AbsolutePath,
    Count,
    Duration,
    EngineVersion,
    HeaderName,
    LabelValue,
    Line,
    Target,
    Url,
)

_RESERVED = frozenset({
    "authorization", "host", "content-encoding", "content-length", "content-type", "user-agent", "connection",
    "keep-alive", "proxy-authenticate", "proxy-authorization", "www-authenticate", "accept-encoding",
    "x-prometheus-remote-write-version", "x-prometheus-remote-read-version", "te", "trailer", "transfer-encoding",
    "upgrade",
})  # fmt: skip


class Queue(Section):
    """How samples wait for a store; what is left out is Prometheus's default."""

    capacity: Count | None = Field(None, description="Samples that wait, each shard")
    max_shards: Count | None = Field(None, description="Parallel senders")
    max_samples_per_send: Count | None = Field(None, description="Samples of one request")
    batch_send_deadline: Duration | None = Field(None, description="Longest wait for a full request")
    max_backoff: Duration | None = Field(None, description="Longest pause between two attempts")


class RemoteWrite(Section):
    """A store that receives the samples: Mimir, Thanos Receive, VictoriaMetrics or a managed service."""

    url: Url = Field(description="Where samples are pushed to")
    basic_auth_user: Line | None = Field(None, description="User of basic authentication")
    password_file: AbsolutePath | None = Field(None, description="File with that user's password")
    bearer_token_file: AbsolutePath | None = Field(None, description="File with a bearer token")
    tls_ca_file: AbsolutePath | None = Field(None, description="CA that signed the store's certificate")
    headers: dict[HeaderName, LabelValue] = Field({}, description="Headers of each request, e.g. {X-Scope-OrgID: k3}")
    series: Literal["all", "recorded"] = Field("all", description="recorded: only k3: series, alerts and up")
    queue: Queue = Field(Queue(), description="How samples wait for the store")

    @model_validator(mode="after")
    def _authenticates_one_way(self) -> RemoteWrite:
        if bool(self.basic_auth_user) != bool(self.password_file):
            raise ValueError("basic auth needs both basic_auth_user and password_file")
        for header in self.headers:
            if header.lower() in _RESERVED:
                raise FieldError("is a header that Prometheus sets itself", ("headers", header), header,
                                 "use basic_auth_user or bearer_token_file" if "auth" in header.lower() else "")
        names = [header.lower() for header in self.headers]
        for header in self.headers:
            if names.count(header.lower()) > 1:
                raise FieldError("stands twice: case makes no difference to HTTP", ("headers", header), header)
        for name in ("batch_send_deadline", "max_backoff"):
            given = getattr(self.queue, name)
            if given is not None and given.seconds < 0.03:
                raise FieldError("must be at least 30ms", ("queue", name), str(given))
        if self.password_file and self.bearer_token_file:
            raise ValueError("takes basic auth or a bearer token, not both")
        return self


class Prometheus(Section):
    """The Prometheus that reads the bundle."""

    version: EngineVersion = Field("2.42", description="Its version, in quotes: nothing newer is rendered")
    scrape_interval: Duration = Field(Duration("15s"), description="1s to 2m; windows hold at least 4 of it")
    scrape_timeout: Duration | None = Field(None, description="Default the interval, at most 10s")
    evaluation_interval: Duration = Field(Duration("15s"), description="How often rules are evaluated, 1s to 2m")
    address: Target = Field("127.0.0.1:9090", description="Its own; the next shard's port is 100 higher, and so on")
    shards: int = Field(1, ge=1, le=64, description="Servers among which the targets are divided")
    alertmanagers: list[Target] = Field(["127.0.0.1:9093"], description="Where alerts are sent to")
    remote_write: list[RemoteWrite] = Field([], description="Stores that receive the samples")

    @model_validator(mode="after")
    def _timeout_fits(self) -> Prometheus:
        version = Version.parse(self.version)
        if version < Version.parse("2.42.0"):
            raise FieldError("is older than 2.42, which cannot read what is rendered", ("version",), self.version,
                             "update Prometheus")
        for name in ("scrape_interval", "evaluation_interval"):
            if not 1 <= getattr(self, name).seconds <= 120:
                raise FieldError("is outside 1s to 2m: Prometheus takes a series for gone 5m after its last value, and "
                                 "one may be late", (name,), str(getattr(self, name)))
        if self.timeout.seconds <= 0:
            raise FieldError("must be above 0", ("scrape_timeout",), str(self.timeout), "leave it out")
        if self.timeout.seconds > self.scrape_interval.seconds:
            raise FieldError(
                f"is longer than scrape_interval {self.scrape_interval}, which Prometheus refuses",
                ("scrape_timeout",), str(self.timeout), f"use at most {self.scrape_interval}")  # fmt: skip
        return self

    @model_validator(mode="after")
    def _servers_and_stores_differ(self) -> Prometheus:
        for index, store in enumerate(self.remote_write):
            if store in self.remote_write[:index]:
                raise FieldError("stands twice", ("remote_write", index, "url"), store.url, "keep one of them")
        last = int(self.address.rpartition(":")[2]) + 100 * (self.shards - 1)
        if last > 65535:
            raise FieldError(f"leaves no port for {self.shards} shards: the last one would listen on {last}",
                             ("address",), self.address, f"use at most port {65535 - 100 * (self.shards - 1)}")
        return self

    def own_address(self, shard: int = 0) -> str:
        """Where the server of a shard listens."""
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + 100 * shard}"

    @property
    def slowest(self) -> float:
        """Seconds between two values of a recorded counter: it moves with scrapes, and once an evaluation."""
        return max(self.scrape_interval.seconds, self.evaluation_interval.seconds)

    @property
    def timeout(self) -> Duration:
        """The scrape timeout: as given, else the interval, at most 10 s."""
        return self.scrape_timeout or Duration.of(min(10, self.scrape_interval.seconds))
