"""systemd units for machines without containers: the sidecar of each service, the bridge to group robots."""

from __future__ import annotations

from collections.abc import Iterator

from k3observe.config.model import Service
from k3observe.plan import Plan
from k3observe.render import engine_log, pods
from k3observe.render.compose import ascend_devices, engine_address
from k3observe.render.sidecar import Place, flags
from k3observe.render.text import header

PLUGIN_DIR = "/run/k3observe-experts"
PREFIX = "/usr/local/bin"
"""Where ``pip install --prefix=/usr/local k3observe`` puts the programs."""

_HARDENED = """\
DynamicUser=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""


def files(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield a unit for each service with a sidecar outside of Kubernetes, and what they need."""
    config = plan.config
    if not config.outputs.systemd:
        return
    directories = []
    for service in config.services:
        inside = service.discovery is not None and service.discovery.kubernetes is not None
        if pods.sidecar_collects(service, config) and not inside:
            unit = header(config) + _exporter(plan, service)
            yield f"systemd/k3observe-exporter-{service.name}.service", unit.encode()
            directories += [PLUGIN_DIR] if service.sidecar.experts.source == "plugin" else []
            directories += [engine_log.LOG_DIR] if engine_log.needed(service) else []
            yield from engine_log.files([service], "systemd")
    if directories:
        note = "# Where the engine writes for the sidecar: give them the engine's user instead of root.\n"
        lines = "".join(f"d {path} 0755 root root\n" for path in sorted(set(directories)))
        yield "systemd/k3observe.tmpfiles.conf", (header(config) + note + lines).encode()
    if any(receiver.robot is not None for receiver in config.notify.receivers.values()):
        yield "systemd/k3observe-notify.service", (header(config) + _notify()).encode()


def _exporter(plan: Plan, service: Service) -> str:
    collect = pods.sidecar_collects(service, plan.config)
    place = Place(*engine_address(service), f"{engine_log.LOG_DIR}/*.log", PLUGIN_DIR)
    words = [_quoted(flag) for flag in flags(plan, service, collect, place)]
    command = " \\\n  ".join([f"{PREFIX}/k3observe-exporter", *words])
    return (
        "[Unit]\n"
        f"Description=k3observe sidecar of {service.name} ({', '.join(collect)})\n"
        "Documentation=man:systemd.exec(5)\n"
        "After=network-online.target\nWants=network-online.target\n\n"
        "[Service]\n"
        "# what differs on this machine, as K3OBSERVE_... variables\n"
        f"EnvironmentFile=-/etc/default/k3observe-exporter-{service.name}\n"
        f"ExecStart={command}\n"
        "Restart=always\nRestartSec=5\nMemoryMax=512M\nTasksMax=256\n\n"
        f"{_devices(plan, service, collect)}{_HARDENED}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


def _devices(plan: Plan, service: Service, collect: list[str]) -> str:
    """The devices it may open, and no other; reading needs no more than the driver's own files."""
    if "gpu" in collect:
        # nvidia, nvidiactl, nvidia-caps ... as /proc/devices names them
        return "DevicePolicy=closed\nDeviceAllow=char-nvidia* rw\n"
    if "npu" in collect:
        allowed = "".join(f"DeviceAllow={path} rw\n" for path in ascend_devices(plan, service))
        driver = "/usr/local/Ascend/driver"
        libraries = ":".join(f"{driver}/lib64{part}" for part in ("", "/common", "/driver"))
        # the driver's group may open its files
        return (f"SupplementaryGroups=HwHiAiUser\nEnvironment=LD_LIBRARY_PATH={libraries}\n"
                f"DevicePolicy=closed\n{allowed}")  # fmt: skip
    return "PrivateDevices=yes\n"


def _quoted(flag: str) -> str:
    """A word of ExecStart: ``%`` and ``$`` have meanings of their own there."""
    flag = flag.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{flag}"' if any(c in flag for c in " '\";") else flag


def _notify() -> str:
    return (
        "[Unit]\nDescription=k3observe bridge from Alertmanager to group robots\n"
        "After=network-online.target\nWants=network-online.target\n\n"
        "[Service]\n"
        "# tokens are for this group only: groupadd --system k3observe; chgrp -R k3observe /etc/k3observe\n"
        "SupplementaryGroups=k3observe\n"
        f"ExecStart={PREFIX}/k3observe-notify --config.file=/etc/k3observe/notify.yaml\n"
        "Restart=always\nRestartSec=5\nMemoryMax=256M\nTasksMax=64\n\n"
        f"PrivateDevices=yes\n{_HARDENED}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
