"""Reads the launch command of an engine, as people keep it in scripts, and says what it means for monitoring.

A flag of another engine is carried over by its meaning and reported: commands circulate with flags that the engine
they are for never had.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3observe.config.errors import ConfigError, Problem
from k3observe.config.launch_flags import FLAGS, FOREIGN

MAX_COMMAND = 64 * 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command says. ``args`` are fields of ``engine.args``; ``notes`` are for the person who ran ``init``."""

    engine: str
    version: str | None
    model: str | None
    served_name: str | None
    port: int | None
    role: str
    args: Mapping[str, Any]
    notes: tuple[str, ...] = ()


_MODEL = ("--model", "--model-path", "--model_path", "--model-name-or-path", "--model-weight-path")
_NAME = ("--served-model-name", "--served_model_name", "--model-name")
_VALUELESS = {"--trust-remote-code", "--enforce-eager", "--headless"}
_IMAGES = (
    (re.compile(r"vllm-ascend[^:/\s]*(?::v?(\d+(?:\.\d+)+)?|$)"), "vllm-ascend"),
    (re.compile(r"vllm(?:-openai)?[^:/\s]*(?::v?(\d+(?:\.\d+)+)?|$)"), "vllm"),
    (re.compile(r"sglang[^:/\s]*(?::v?(\d+(?:\.\d+)+)?|$)"), "sglang"),
    (re.compile(r"mindie[^:/\s]*(?::v?(\d+(?:\.\d+)+)?|$)"), "mindie"),
)
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_CONTAINER_SWITCHES = frozenset({"-d", "-i", "-t", "-it", "-ti", "--rm", "--init", "--privileged", "--detach", "--tty",
                                 "--interactive"})  # fmt: skip


def read(text: str, name: str = "command") -> Launch:
    """Read a launch command or a script that holds one.

    Raises ConfigError when no engine's command is in it, quotes do not match, or a value cannot be read.
    """
    if len(text) > MAX_COMMAND:
        raise ConfigError([Problem("is longer than 64 KiB", file=name)])
    environment: dict[str, str] = {}
    for words in _commands(text, name):
        while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.S)):
            environment[match[1]] = match[2]
            words = words[1:]
        words = [_expanded(word, environment) for word in words]
        if words[:1] == ["export"]:
            environment.update(dict(word.split("=", 1) for word in words[1:] if "=" in word))
            continue
        found = _engine(words, environment)
        if found is not None:
            engine, version, rest = found
            return _launch(engine, version, rest, environment, name)
    raise ConfigError([Problem(
        "holds no launch command of vLLM, SGLang or MindIE", value=text.strip()[:200], file=name,
        fix="give the line that starts the engine, e.g. 'vllm serve MODEL --tensor-parallel-size 8'")])  # fmt: skip


def _commands(text: str, name: str) -> Iterator[list[str]]:
    """Split a script into simple commands: continuations joined, comments gone, cut at ; && || | &."""
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text.replace("\ufeff", ""))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, "#"
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set(";&|\n"):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise ConfigError([Problem(f"cannot be read: {error}", file=name, fix="check the quotes")]) from None
    yield words


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    """Put in what the script itself assigned: $TP, ${TP}, ${TP:-8}."""
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return environment.get(name, match[0] if default is None else default)

    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)", value, word)


def _engine(words: list[str], environment: dict[str, str]) -> tuple[str, str | None, list[str]] | None:
    """Find which engine a command starts, its version if an image's tag says it, and the engine's own arguments."""
    version, image, after = None, None, 0
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        base = word.rsplit("/", 1)[-1]
        if image is None and _CONTAINERS & set(words[:index]):
            if word in ("-e", "--env") and rest and "=" in rest[0]:
                environment.update([tuple(rest[0].split("=", 1))])  # type: ignore[list-item]
            before = words[index - 1]
            is_value = before.startswith("-") and "=" not in before and before not in _CONTAINER_SWITCHES
            for pattern, engine in _IMAGES:
                if not word.startswith("-") and not is_value and "/" in word and (match := pattern.search(word)):
                    version, image, after = match[1], engine, index + 1
                    break
        if base == "vllm" and rest[:1] == ["serve"]:
            return _kind("vllm", image, environment, rest), version, rest[1:]
        if word.startswith("vllm.entrypoints"):
            return _kind("vllm", image, environment, rest), version, rest
        if word == "sglang.launch_server" or (base == "sglang" and rest[:1] == ["serve"]):
            return "sglang", version, rest[1:] if base == "sglang" else rest
        if base in ("mindie_service", "mindieservice_daemon"):
            return "mindie", version, rest
    if image is not None:
        rest = words[after:]
        return _kind(image, image, environment, rest), version, rest[1:] if rest[:1] == ["serve"] else rest
    return None


def _kind(engine: str, image: str | None, environment: Mapping[str, str], rest: list[str]) -> str:
    ascend = any(key.startswith(("ASCEND_", "HCCL_", "VLLM_ASCEND_")) or key == "DYNAMIC_EPLB" for key in environment)
    if engine == "vllm" and (image == "vllm-ascend" or ascend or any("dynamic_eplb" in word for word in rest)):
        return "vllm-ascend"
    return engine


@dataclass
class _Reading:
    args: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)


def _launch(engine: str, version: str | None, words: list[str], env: Mapping[str, str], name: str) -> Launch:
    reading = _Reading()
    position = 0
    positional: list[str] = []
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("-") or re.fullmatch(r"-\d.*", word):
            positional.append(word)
            continue
        flag, equals, inline = word.partition("=")
        flag = flag if flag in _MODEL + _NAME else flag.replace("_", "-") if flag.startswith("--") else flag
        following: list[str] = []
        while position + len(following) < len(words) and not words[position + len(following)].startswith("-"):
            following.append(words[position + len(following)])
        values = [inline] if equals else following
        try:
            taken = _flag(engine, flag, values, reading)
            position += 0 if equals else taken
        except ValueError as error:
            raise ConfigError([Problem(str(error), (flag,), values[0] if values else None, file=name)]) from None
    return _finish(engine, version, positional, reading, env)


def _flag(engine: str, flag: str, values: list[str], reading: _Reading) -> int:
    """Take in one flag; return how many of the following words were its values."""
    known = FLAGS[engine].get(flag)
    if known is None and flag in FOREIGN and flag not in _MODEL:
        known = FOREIGN[flag]
        reading.notes.append(f"{flag} is no flag of {engine}; it was carried over as {known[0]}")
    if known is not None:
        target, reader = known
        if not callable(reader):
            reading.args[target] = reader
            return 0
        if not values:
            raise ValueError("needs a value")
        if "$" in values[0]:
            reading.notes.append(f"{flag} {values[0]} is set where the command does not show it; it was left out")
        else:
            reading.args[target] = reader(values[0])
        return 1
    reading.values[flag] = values
    if flag in _VALUELESS:
        return 0
    return len(values) if flag in _NAME else min(1, len(values))


def _finish(engine: str, version: str | None, words: list[str], reading: _Reading, env: Mapping[str, str]) -> Launch:
    args, notes, values = reading.args, reading.notes, reading.values

    def value(*flags: str) -> str | None:
        return next((values[flag][0] for flag in flags if values.get(flag)), None)

    _eplb(engine, value("--eplb-config") or value("--additional-config"), args, notes)
    role = _role(value("--kv-transfer-config"), value("--disaggregation-mode"), args, notes)
    if args.get("expert_parallel_size", 1) > 1:
        args["expert_parallel"] = True
        if engine in ("vllm", "vllm-ascend"):
            ranks = args.get("tensor_parallel", 1) * args.get("data_parallel", 1)
            wanted = args.pop("expert_parallel_size")
            notes.append(f"{engine} has no size of the expert-parallel group: with --enable-expert-parallel it is "
                         f"tensor x data parallel = {ranks}, not {wanted}")  # fmt: skip
    if engine == "mindie" and env.get("MIES_SERVICE_MONITOR_MODE") != "1":
        notes.append("MindIE serves no metrics unless MIES_SERVICE_MONITOR_MODE=1 is set at its start: set it")
    if engine == "sglang" and "enable_metrics" not in args:
        notes.append("SGLang serves no metrics without --enable-metrics: add it")
    if env.get("VLLM_USE_RUST_FRONTEND") == "1":
        args["rust_frontend"] = True
    start = words[1:] if words[:1] == ["start"] else words
    model = value(*_MODEL) or next(iter(start), None)
    if value("--config"):
        notes.append(f"the settings in {value('--config')} were not read: add them to engine.args")
    port = (value("--port", "-p") or "").strip()
    if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        notes.append(f"--port {port[:20]} is no port; it was left out")
        port = ""
    return Launch(
        engine, version, model, value(*_NAME), int(port) if port else None, role, args, tuple(notes)
    )


def _eplb(engine: str, text: str | None, args: dict[str, Any], notes: list[str]) -> None:
    if text is None:
        return
    try:
        config = json.loads(text)
        config = config.get("eplb_config", config) if engine == "vllm-ascend" else config
        redundant = config.get("num_redundant_experts")
        args["eplb_log_balancedness"] = bool(config.get("log_balancedness", False))
        if config.get("dynamic_eplb"):
            args["eplb"] = True
        if isinstance(redundant, int) and redundant >= 0:
            args["num_redundant_experts"] = redundant
    except (ValueError, AttributeError):
        notes.append(f"this value is no JSON object and was left out: {text[:80]}")


def _role(transfer: str | None, mode: str | None, args: dict[str, Any], notes: list[str]) -> str:
    if transfer is not None:
        try:
            config = json.loads(transfer)
            name, kind = str(config.get("kv_connector", "")), config.get("kv_role")
        except (ValueError, AttributeError):
            notes.append(f"this value is no JSON object and was left out: {transfer[:80]}")
            return "unified"
        if "Offloading" in name or "LMCache" in name:
            args["kv_offload"] = True
        return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(kind), "unified")
    return mode if mode in ("prefill", "decode") else "unified"
