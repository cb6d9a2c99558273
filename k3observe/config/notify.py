"""Alertmanager: receivers, routes, and times of silence."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from k3observe.catalogue.version import Version
from k3observe.config.errors import FieldError, did_you_mean
from k3observe.config.section import Route, Section
from k3observe.config.values import (
    AbsolutePath,
    Duration,
    EngineVersion,
    Line,
    Mail,
    Name,
    Target,
    TimeRange,
    Url,
    Verbatim,
    Weekdays,
    Zone,
)


class Alertmanager(Section):
    """The Alertmanager that reads the bundle."""

    version: EngineVersion = Field("0.25", description="Its version, in quotes; what is newer than that is refused")

    @model_validator(mode="after")
    def _reads_what_is_rendered(self) -> Alertmanager:
        if Version.parse(self.version) < Version.parse("0.24.0"):
            raise FieldError("is older than 0.24, which cannot read what is rendered", ("version",), self.version,
                             "update Alertmanager")
        return self


class Webhook(Section):
    """Alertmanager's generic webhook."""

    url: Url | None = Field(None, description="Where notifications are posted to")
    url_file: AbsolutePath | None = Field(None, description="File with the URL, where it is a secret")
    send_resolved: bool = Field(True, description="Tell when the alert has ended, too")

    @model_validator(mode="after")
    def _one(self) -> Webhook:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("needs either url or url_file")
        return self


class Robot(Section):
    """A DingTalk, Feishu or WeCom robot behind k3observe-notify."""

    bridge: Url = Field(description="URL of the robot in k3observe-notify, e.g. http://127.0.0.1:19304/ops-cn")


class PagerDuty(Section):
    """PagerDuty's events API v2."""

    routing_key_file: AbsolutePath = Field(description="File with the integration key")


class Slack(Section):
    """Slack's incoming webhook."""

    api_url_file: AbsolutePath = Field(description="File with the webhook's URL")
    channel: Verbatim | None = Field(None, description="Channel, e.g. '#k3'; default the webhook's own")


class Email(Section):
    """Mail over SMTP."""

    to: Mail = Field(description="Recipients, comma separated")
    from_: Mail = Field(alias="from", description="Sender")
    smarthost: Target = Field(description="Mail server, host:port")
    auth_username: Line | None = Field(None, description="User of the mail server")
    auth_password_file: AbsolutePath | None = Field(None, description="File with that user's password")


class WeCom(Section):
    """WeCom (企业微信) application messages, Alertmanager's native receiver."""

    corp_id: Verbatim = Field(description="ID of the enterprise")
    agent_id: Verbatim = Field(description="ID of the application")
    api_secret_file: AbsolutePath = Field(description="File with the application's secret")
    to_party: Verbatim | None = Field(None, description="Departments, separated by |")
    to_user: Verbatim | None = Field(None, description="Users, separated by |; @all for everybody")


class Receiver(Section):
    """Where notifications go; one or more ways."""

    webhook: Webhook | None = Field(None, description="A program of yours")
    robot: Robot | None = Field(None, description="DingTalk, Feishu or WeCom robot, through k3observe-notify")
    pagerduty: PagerDuty | None = Field(None, description="PagerDuty")
    slack: Slack | None = Field(None, description="Slack")
    email: Email | None = Field(None, description="Mail")
    wecom: WeCom | None = Field(None, description="WeCom application messages")

    @model_validator(mode="after")
    def _some(self) -> Receiver:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("needs one of " + ", ".join(type(self).model_fields))
        return self


class Mute(Section):
    """A time in which notifications are held back (Alertmanager time_intervals)."""

    weekdays: list[Weekdays] = Field([], description="e.g. [saturday, monday:friday]; empty: every day")
    times: list[TimeRange] = Field([], description='e.g. ["02:00-06:00"]; empty: all day')
    location: Zone = Field("UTC", description="Time zone of the times")
    actions: list[Route] = Field([], description="Actions and severities it mutes; empty: all but critical")


class Notify(Section):
    """Receivers, and which action or severity goes to which."""

    receivers: dict[Name, Receiver] = Field({}, description="Receivers by name")
    routes: dict[Route | Literal["watchdog", "default"], Name] = Field(
        {}, description="Action, severity, watchdog or default to the receiver; all that match are notified")
    group_wait: Duration = Field(Duration("30s"), description="Wait for more alerts before the first notification")
    group_interval: Duration = Field(Duration("5m"), description="Wait before a group that changed is notified again")
    repeat_interval: Duration = Field(Duration("4h"), description="Wait before a group that did not change is repeated")
    mute: dict[Name, Mute] = Field({}, description="Times of silence by name")

    @model_validator(mode="after")
    def _receivers_exist(self) -> Notify:
        if "nobody" in self.receivers:
            raise FieldError("is the name of our receiver that tells nobody", ("receivers", "nobody"), None,
                             "choose another name")
        for name in ("group_interval", "repeat_interval"):
            if getattr(self, name).seconds <= 0:
                raise FieldError("must be above 0, else Alertmanager refuses it", (name,), str(getattr(self, name)))
        for route, receiver in self.routes.items():
            if receiver not in self.receivers:
                fix = did_you_mean(receiver, self.receivers) if self.receivers else "define it under notify.receivers"
                raise FieldError("names a receiver that does not exist", ("routes", route), receiver, fix)
        return self
