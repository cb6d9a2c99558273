"""What would be silent or wrong in a cluster is refused, with the reason and what to do."""

from __future__ import annotations

import pytest

from k3observe.config.errors import ConfigError
from tests.kubernetes.conftest import Render, stack

KUBERNETES = {"kubernetes": True}
OUTSIDE = {"discovery": None, "targets": ["10.0.0.1:8000"], "replicas": None}
TWO = [{"name": name, "engine": {"name": "vllm", "version": "0.33"},
        "discovery": {"kubernetes": {"selector": {"app": name}}}, "accelerators": {"kind": "nvidia"},
        "sidecar": {"collect": ["gpu"]}} for name in ("a", "b")]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), [
    (stack(outputs={"kubernetes": {"alertmanager": "config"}}), "add namespace to identity_labels"),
    (stack(OUTSIDE, {"kubernetes": {"alertmanager": "config"}}, identity_labels=["namespace"]),
     "targets outside the cluster have no namespace"),
    (stack(outputs={"kubernetes": {"alertmanager": "config"}}, identity_labels=["namespace"], notify={"receivers": {
        "pd": {"pagerduty": {"routing_key_file": "/etc/keys/pd"}}}}), "write /etc/alertmanager/secrets/<secret>/<key>"),
    (stack(outputs={"kubernetes": {"alertmanager": "config"}}, identity_labels=["namespace"], notify={"mute": {
        "n": {"weekdays": ["sunday"], "location": "Asia/Shanghai"}}}), "are in UTC only"),
    (stack(outputs={"kubernetes": {"alertmanager": "config", "operator": "victoria-metrics"}},
           identity_labels=["namespace"]), "is an object of the Prometheus operator"),
    (stack(outputs={"kubernetes": {"namespace": "Monitoring"}}), "is no name for Kubernetes"),
    (stack({"discovery": {"kubernetes": {"port": "http"}}}), "by number, not by the name of a port"),
    (stack({"sidecar": {"experts": {"source": "file"}}}), "the source file needs it"),
    (stack(outputs={"kubernetes": {"devices": "daemonset"}}, services=TWO), "cannot tell whose a node's are"),
    (stack({"discovery": {"kubernetes": {"workload": None}}}, {"kubernetes": {"autoscaling": {}}}),
     "the autoscaler must know what to scale"),
    (stack({"replicas": {"max": None}}, {"kubernetes": {"autoscaling": {}}}), "no service may grow"),
    (stack(prometheus={"shards": 2}), "add prometheus.remote_write, and a ruler there"),
    (stack(prometheus={"shards": 2, "remote_write": [{"url": "http://vm:8428/api/v1/write", "series": "recorded"}]}),
     "shards record nothing"),
    (stack(prometheus={"remote_write": [{"url": "http://vm/api/v1/write", "basic_auth_user": "k3"}]}),
     "basic auth needs both"),
])  # fmt: skip
def test_refused(rendered: Render, config: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        rendered(config)
    assert message in str(error.value)
    assert "k3observe.yaml" in str(error.value)
