"""Values that Prometheus, Alertmanager, Kubernetes or a template would choke on are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k3observe.config import ConfigError, loads
from k3observe.config.errors import Problem

PATHS: dict[str, list[tuple[Any, str]]] = {
    "services.0.name": [("nan\n", "must be letters"), ("a٣", "must be letters")],
    "services.0.engine.version": [("٣", "is no version")],
    "services.0.engine.args.max_num_seqs": [(10**40, "less than or equal")],
    "services.0.replicas.expected": [(10**9, "less than or equal")],
    "services.0.model.served_name": [("a\nExecStartPre=/bin/x", "must be one line"), ("\u2028", "must be one line")],
    "services.0.model.startup_grace": [("0s", "must be at least 1s"), ("9" * 30 + "w", "is longer than 10 years")],
    "services.0.targets.0": [("[::1::2]:1", "is no IPv6 address"), ("h:٣", "is no host:port")],
    "services.0.labels.job": [("x", "is a label of k3observe's own")],
    "services.0.slo.errors": [("0.000000001%", "between 1e-9 and 1e15"), ("9" * 30 + "%", "between 1e-9")],
    "services.0.accelerators.hot": [(-1, "greater than 30")],
    "services.0.sidecar.collect": [(["gpu", "gpu"], "stands twice")],
    "services.0.sidecar.experts.path": [("/a:b", "no colon"), ("/a/../b", "without ..")],
    "services.0.alerts.EngineDown.labels.alertname": [("x", "is a label of k3observe's own")],
    "alerts.EngineDown.annotations.note": [("\x1b[2J", "without control characters")],
    "identity_labels": [(["NaN"], "is a number to PromQL"), (["a", "a"], "stands twice")],
    "prometheus.version": [("2.41", "is older than 2.42")],
    "prometheus.scrape_timeout": [("0s", "must be above 0")],
    "prometheus.address": [("h:65535", "leaves no port for 2 shards")],
    "prometheus.remote_write.0.url": [
        ("http://h:99999/", "is no http(s) URL"), ("http://h/%zz", "write other characters as %XX")],
    "prometheus.remote_write": [([{"url": "http://h/", "headers": {"Authorization": "x"}}],
                                 "is a header that Prometheus sets itself"),
                                ([{"url": "http://h/", "queue": {"max_backoff": "1ms"}}], "must be at least 30ms"),
                                ([{"url": "http://h/"}] * 2, "stands twice")],
    "alertmanager.version": [("0.20", "is older than 0.24")],
    "notify.group_interval": [("0s", "must be above 0")],
    "notify.receivers.nobody.webhook.url": [("http://h/", "is the name of our receiver that tells nobody")],
    "notify.receivers.a.slack.channel": [("{{ x", "reads as a template")],
    "notify.receivers.a.email.to": [("../x", "is no mail address"), ("", "one line of 1 to 256")],
    "outputs.kubernetes.labels.team": [("a b", "is no value of a Kubernetes label")],
    "outputs.kubernetes.node_selector.a/b/c": [("x", "is no key of a Kubernetes label")],
    "services.0.discovery.kubernetes.selector.app": [("a,b=c", "is no value of a Kubernetes label")],
    "services.0.discovery.file.files.0": [("/a/*/b.yml", "with * in the file name only"), ("/a/b.txt", "must end in")],
    "services.0.discovery.dns.names.0": [("a..b", "is no DNS name"), ("x" * 64, "is no DNS name")],
}  # fmt: skip


def document(path: str = "stack", value: Any = "k3") -> dict[str, Any]:
    """A configuration with one value at a path."""
    found: dict[str, Any] = {
        "version": 1, "stack": "k3", "prometheus": {"shards": 2},
        "services": [{"name": "a", "engine": {"name": "vllm"}, "targets": ["a:1"]}],
    }  # fmt: skip
    place: Any = found
    if ".discovery." in path:
        del found["services"][0]["targets"]
    *steps, last = path.split(".")
    for step, following in zip(steps, [*steps, last][1:], strict=True):
        fresh: Any = [{}] if following == "0" else {}
        place = place[0] if step == "0" else place.setdefault(step, fresh)
    if last == "0":
        place[0] = value
    else:
        place[last] = value
    return found


@pytest.mark.parametrize(("path", "value", "said"), [
    (path, value, said) for path, cases in PATHS.items() for value, said in cases
])  # fmt: skip
def test_a_value_that_something_downstream_would_choke_on_is_refused(path: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(json.dumps(document(path, value), indent=1), "k3.yaml")
    assert said in str(caught.value)
    for problem in caught.value.problems:
        assert str(problem).startswith("k3.yaml:")
        assert str(problem).isprintable()


def test_records_of_services_have_underscores_and_long_names() -> None:
    for name in ("_http._tcp.k3.example.com", "headless." + ".".join(["a-namespace-of-some-length"] * 4)):
        discovery = {"names": [name], "type": "SRV"}
        assert loads(json.dumps(document("services.0.discovery.dns", discovery)))


def test_services_whose_objects_would_have_one_name_are_refused() -> None:
    found = document()
    found["services"].append(dict(found["services"][0], name="A"))
    with pytest.raises(ConfigError, match="differs from 'a' in case or punctuation only"):
        loads(json.dumps(found))


def test_a_message_is_one_line_whatever_stands_in_a_name() -> None:
    assert str(Problem("is no known field", ("a\nb", "\x1b"), file="f", line=1)) == r"f:1: a\nb.\x1b: is no known field"
