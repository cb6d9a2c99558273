"""Docker compose: the servers on one machine, and the sidecar for each machine with accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3observe.config.model import Config, Service
from k3observe.plan import Plan
from k3observe.render import engine_log, pods
from k3observe.render.sidecar import Place, flags
from k3observe.render.text import header, to_yaml

GRAFANA = "13.0.1"
_SERVERS = """\
docker compose -f compose/compose.yaml up -d
All share the host's network, so that the addresses of the configuration mean the same inside and outside. They listen
on the loopback interface only: put a proxy with authentication before Grafana.
Tokens and keys of receivers: compose/secrets/, which appears as /etc/alertmanager/secrets."""
_SIDECAR = """\
On each machine of {service}: docker compose -f compose/sidecar-{service}.yaml up -d"""
_ASCEND = "/usr/local/Ascend/driver"

Document = dict[str, Any]


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield the servers' file and one for the sidecar of each service outside of Kubernetes."""
    config = plan.config
    if not config.outputs.compose:
        return
    if config.outputs.prometheus == "full":
        document = {"name": f"k3observe-{config.stack}".lower().replace(".", "-"), "services": _servers(config),
                    "volumes": {name: {} for name in _volumes(config)}}  # fmt: skip
        yield "compose/compose.yaml", _file(config, _SERVERS, document)
    for service in config.services:
        inside = service.discovery is not None and service.discovery.kubernetes is not None
        if pods.sidecar_collects(service, config) and not inside:
            name = f"k3observe-sidecar-{service.name}".lower().replace(".", "-")
            document = {"name": name, "services": {"k3observe-exporter": _sidecar(plan, service)}}
            yield f"compose/sidecar-{service.name}.yaml", _file(config, _SIDECAR.format(service=service.name), document)
            yield from engine_log.files([service], "compose")


def _file(config: Config, note: str, document: Document) -> bytes:
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    return (header(config) + comment + to_yaml(document)).encode()


def _hardened(**own: Any) -> Document:
    """Nothing of a container's default rights; ``own`` is what it is and needs."""
    return {
        **own, "network_mode": "host", "restart": "unless-stopped", "read_only": True, "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }  # fmt: skip


def _volumes(config: Config) -> list[str]:
    grafana = ["grafana"] if config.outputs.grafana else []
    return [*(name for name, _, _ in _prometheus_servers(config)), "alertmanager", *grafana]


def _prometheus_servers(config: Config) -> Iterator[tuple[str, str, str]]:
    """Name, file and address of each Prometheus."""
    for shard in range(config.prometheus.shards):
        name = "prometheus" if config.prometheus.shards == 1 else f"prometheus-{shard}"
        yield name, f"{name}.yml", config.prometheus.own_address(shard)


def _servers(config: Config) -> Document:
    found: Document = {}
    for name, file, address in _prometheus_servers(config):
        found[name] = _hardened(
            image=f"prom/prometheus:{_tag(config.prometheus.version)}",
            command=[
                f"--config.file=/etc/prometheus/{file}", "--storage.tsdb.path=/prometheus",
                "--storage.tsdb.retention.time=30d", f"--web.listen-address={address}", "--web.enable-lifecycle",
            ],
            volumes=["../prometheus:/etc/prometheus:ro", f"{name}:/prometheus"])  # fmt: skip
    found["alertmanager"] = _hardened(
        image=f"prom/alertmanager:{_tag(config.alertmanager.version)}",
        command=[
            "--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager",
            "--web.listen-address=127.0.0.1:9093", "--cluster.listen-address=",
        ],
        volumes=["../alertmanager:/etc/alertmanager:ro", "./secrets:/etc/alertmanager/secrets:ro",
                 "alertmanager:/alertmanager"])  # fmt: skip
    if config.outputs.grafana:
        found["grafana"] = _hardened(
            image=f"grafana/grafana:{GRAFANA}",
            environment={"GF_SERVER_HTTP_ADDR": "127.0.0.1", "GF_ANALYTICS_REPORTING_ENABLED": "false",
                         "GF_ANALYTICS_CHECK_FOR_UPDATES": "false"},
            volumes=["../grafana/provisioning:/etc/grafana/provisioning:ro",
                     "../grafana/dashboards:/etc/grafana/dashboards:ro", "grafana:/var/lib/grafana"],
            tmpfs=["/tmp"])  # fmt: skip # noqa: S108
    if any(receiver.robot is not None for receiver in config.notify.receivers.values()):
        found["k3observe-notify"] = _hardened(
            image=config.outputs.images.command, entrypoint=["k3observe-notify"],
            command=["--config.file=/etc/k3observe/notify.yaml"], volumes=["./notify:/etc/k3observe:ro"])  # fmt: skip
    return found


def _tag(version: str) -> str:
    numbers = version.removeprefix("v")
    return "v" + (numbers if numbers.count(".") > 1 else f"{numbers}.0")


def _sidecar(plan: Plan, service: Service) -> Document:
    collect = pods.sidecar_collects(service, plan.config)
    place = Place(*engine_address(service), f"{engine_log.LOG_DIR}/*.log")
    container = _hardened(
        image=plan.config.outputs.images.exporter,
        command=[pods.literal(flag) for flag in flags(plan, service, collect, place)],
        volumes=[pods.literal(mount) for mount in _mounts(service, collect)])
    if "gpu" in collect:
        device = {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}
        container["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    if "npu" in collect:
        libraries = ":".join(f"{_ASCEND}/lib64{part}" for part in ("", "/common", "/driver"))
        container |= {"devices": ascend_devices(plan, service), "environment": {"LD_LIBRARY_PATH": libraries},
                      "user": "0:0"}  # fmt: skip
    return {key: value for key, value in container.items() if value != []}


def engine_address(service: Service) -> tuple[str, int | None]:
    """Where the engine of this machine answers: its port on the loopback interface."""
    port = service.targets[0].rpartition(":")[2] if service.targets else None
    discovered = service.discovery.dns.port if service.discovery is not None and service.discovery.dns else None
    return "127.0.0.1", int(port) if port else discovered or 8000


def ascend_devices(plan: Plan, service: Service) -> list[str]:
    """The device files that npu-smi opens."""
    count = plan.facts[service.name]["accelerators_per_node"] or 8
    return ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", *(f"/dev/davinci{n}" for n in range(count))]


def _mounts(service: Service, collect: list[str]) -> list[str]:
    found = []
    if "experts" in collect:
        experts = service.sidecar.experts
        if experts.source == "log":
            folder = experts.path.rpartition("/")[0] if experts.path else engine_log.LOG_DIR
            found.append(f"{folder}:{folder}:ro")
        elif experts.source in ("file", "plugin"):
            path = experts.path or "/run/k3observe-experts"
            folder = path.rpartition("/")[0] if experts.source == "file" else path
            found.append(f"{folder}:{folder}:ro")
    if "npu" in collect:
        found += [f"{path}:{path}:ro" for path in (_ASCEND, "/usr/local/dcmi", "/usr/local/bin/npu-smi")]
    return found
