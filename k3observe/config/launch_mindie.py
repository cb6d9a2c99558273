"""MindIE's ``config.json``, where its daemon is told what others take as flags (MindIE 1.0 to 2.x)."""

from __future__ import annotations

import json

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.launch_manifest import items, mapping

_SECTIONS = ("ServerConfig", "BackendConfig")


def is_config(text: str) -> bool:
    """Whether a text is that file."""
    return text.lstrip("\ufeff \t\r\n").startswith("{") and any(f'"{section}"' in text for section in _SECTIONS)


def words(text: str, name: str) -> tuple[list[str], int | None]:
    """What the file says, spelled as flags, and the NPUs it lists; raises ConfigError where it is no JSON."""
    try:
        data = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        what = error.msg if isinstance(error, json.JSONDecodeError) else "is nested too deeply"
        raise ConfigError([Problem(f"is no JSON: {what}", file=name, line=line)]) from None
    server, backend = (mapping(mapping(data).get(section)) for section in _SECTIONS)
    deployed, schedule = mapping(backend.get("ModelDeployConfig")), mapping(backend.get("ScheduleConfig"))
    model = mapping(next(iter(items(deployed.get("ModelConfig"))), None))
    world, tensor, data_parallel, experts = (_size(model.get(key)) for key in ("worldSize", "tp", "dp", "moe_ep"))
    given = {
        "--model": model.get("modelWeightPath"),
        "--served-model-name": model.get("modelName"),
        "--tensor-parallel-size": tensor or (world and world // (data_parallel or 1)),
        "--data-parallel-size": data_parallel,
        "--expert-parallel-size": experts,
        "--max-batch-size": schedule.get("maxBatchSize"),
        "--max-seq-len": deployed.get("maxSeqLen"),
        "--host": server.get("ipAddress"),
        "--metrics-port": server.get("metricsPort", 1027),
    }
    flags = [f"{flag}={value}" for flag, value in given.items() if isinstance(value, str | int) and value]
    if "prefix_cache" in str(model.get("plugin_params")) or schedule.get("enablePrefixCache") is True:
        flags.append("--enable-prefix-caching")
    if server.get("httpsEnabled") is True:
        flags.append("--ssl-certfile=config.json")
    devices = [len(group) for group in items(backend.get("npuDeviceIds")) if isinstance(group, list)]
    return flags, max(devices, default=None)


def _size(value: object) -> int | None:
    """A number of ranks; -1 leaves it to MindIE."""
    return value if isinstance(value, int) and value > 0 else None
