"""Scripts and containers: from the text of a script to the engines it starts, and where each can be reached."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3observe.config.errors import ConfigError, Problem


@dataclass(frozen=True)
class Place:
    """What stands around a command; ``published`` is None where the engine's ports are those of its host."""

    image: str = ""
    published: Mapping[int, tuple[str, int]] | None = None
    """Port in the container -> address and port of the host."""
    kubernetes: Mapping[str, Any] | None = None
    """The fields of ``discovery.kubernetes`` that a manifest tells."""
    ports: tuple[int, ...] = ()
    """Ports that a manifest declares of the container."""
    replicas: int | None = None
    devices: int | None = None


@dataclass(frozen=True)
class Invocation:
    """An engine that is started: ``words`` are its own arguments, ``version`` what an image's tag or a pin says."""

    engine: str
    version: str | None
    words: Sequence[str]
    environment: Mapping[str, str]
    place: Place = field(default_factory=Place)


_VERSION = r"v?(\d+(?:\.\d+)+)"
_IMAGES = (
    (re.compile(rf"vllm-ascend[^:/\s]*(?::{_VERSION}|[:@]|$)"), "vllm-ascend"),
    (re.compile(rf"vllm(?:-openai)?[^:/\s]*(?::{_VERSION}|[:@]|$)"), "vllm"),
    (re.compile(rf"sglang[^:/\s]*(?::{_VERSION}|[:@]|$)"), "sglang"),
    (re.compile(rf"mindie[^:/\s]*(?::{_VERSION}|[:@]|$)"), "mindie"),
)
_PIN = re.compile(rf"(vllm|vllm-ascend|sglang)(?:\[[^\]]*\])?=={_VERSION}\S*")
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_SWITCHES = frozenset({"--rm", "--init", "--privileged", "--detach", "--tty", "--interactive", "--read-only",
                       "--publish-all", "--no-healthcheck", "--quiet"})  # fmt: skip
_PROMPT = re.compile(r"^[ \t]*[$>][ \t]+(?=\S)", re.M)
"""Where a command was copied from a terminal."""
_UNIT = re.compile(r"^[ \t]*(ExecStart|command|Environment)[ \t]*=[ \t]*[-+!@:]*", re.M)
"""systemd and supervisord."""
_EXEC = re.compile(r"^[ \t]*(?:CMD|ENTRYPOINT)[ \t]+(\[.*\])[ \t]*$", re.M)
"""Dockerfiles."""
_STARTS = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints|\bsglang\.launch_server|\bsglang\s+serve\b|\bmindie")
_SUBSTITUTION = re.compile(r"\$\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|`[^`\n]*`")


def invocations(
    text: str, name: str, environment: Mapping[str, str] | None = None, place: Place = Place(), depth: int = 0
) -> Iterator[Invocation]:
    """Every engine that a script starts, in its order; raises ConfigError where its quotes do not match."""
    known, pins = dict(environment or {}), {}
    for words in _commands(text, name):
        while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.S)):
            known[match[1]] = expanded(match[2], known)
            words = words[1:]
        end = next((i for i, word in enumerate(words) if re.fullmatch(r"\d*>>?.*|<", word, re.S)), len(words))
        words = [expanded(word, known) for word in words[:end]]
        if words[:1] == ["export"]:
            known.update(dict(word.split("=", 1) for word in words[1:] if "=" in word))
            continue
        if words[:1] == ["FROM"] and len(words) > 1:
            place = Place(words[1])
        pins.update({match[1]: match[2] for word in words if (match := _PIN.fullmatch(word))})
        here, inside, rest = _container(words)
        around = here or place
        found = list(started(rest, name, {**known, **inside}, around, pins, depth))
        if not found and here is not None and _kind(here.image) and (not rest or _base(rest[0]) in _SHELLS):
            place = here  # an interactive container: what follows is typed into it
            known.update(inside)
        yield from found


def started(
    words: list[str], name: str, known: Mapping[str, str], place: Place, pins: Mapping[str, str], depth: int = 0
) -> Iterator[Invocation]:
    """The engines that one command starts, by itself or through a script given to a shell."""
    script = _script(words)
    if script is not None and depth < 3:
        yield from invocations(script, name, known, place, depth + 1)
        return
    found = _engine(words, known, _kind(place.image))
    if found is not None:
        engine, rest = found
        yield Invocation(engine, _version(place.image) or pins.get(engine), rest, known, place)
    elif depth < 3 and words and words[0] not in ("echo", "printf"):
        # what is kept in a variable, or handed to ssh or tmux
        for word in words:
            if re.search(r"\s", word) and _STARTS.search(word):
                yield from invocations(word, name, known, place, depth + 1)


def expanded(word: str, environment: Mapping[str, str]) -> str:
    """Put in what the script itself assigned: $TP, ${TP}, ${TP:-8}; and of manifests $(TP)."""
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3] or match[4], match[2]
        return environment.get(name, match[0] if default is None else default)

    return re.sub(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)|\$\((\w+)\)", value, word)


def _commands(text: str, name: str) -> Iterator[list[str]]:
    """Split a script into simple commands: continuations joined, comments gone, cut at ; && || | &."""
    joined = _PROMPT.sub("", text.replace("\ufeff", ""))
    joined = re.sub(r"\\[ \t]*\r?\n", " ", joined)
    joined = _UNIT.sub(lambda match: "export " if match[1] == "Environment" else "", _EXEC.sub(_exec, joined))
    joined = _SUBSTITUTION.sub(lambda match: re.sub(r"[\s;&|]+", "_", match[0]).replace("`", "$"), joined)
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


def _exec(match: re.Match[str]) -> str:
    try:
        return shlex.join(json.loads(match[1]))
    except (ValueError, TypeError, RecursionError):
        return match[0]


def _base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _script(words: Sequence[str]) -> str | None:
    """What stands after ``bash -lc``."""
    for index, word in enumerate(words):
        if _base(word) not in _SHELLS:
            continue
        for at in range(index + 1, len(words) - 1):
            if not words[at].startswith("-"):
                break
            if re.fullmatch(r"-[a-z]*c", words[at]):
                return words[at + 1]
    return None


def _container(words: list[str]) -> tuple[Place | None, dict[str, str], list[str]]:
    """Where ``docker run`` puts a command, its environment, and the command itself."""
    start = next((i for i, word in enumerate(words) if _base(word) in _CONTAINERS), None)
    verb = next((i for i in range(start + 1, len(words)) if words[i] in ("run", "create", "exec")),
                None) if start is not None else None  # fmt: skip
    if verb is None or start is None or "compose" in words[start:verb]:
        return None, {}, words
    inside: dict[str, str] = {}
    published: dict[int, tuple[str, int]] | None = {}
    entrypoint: list[str] = []
    position = verb + 1
    while position < len(words) and words[position].startswith("-"):
        flag, equals, value = words[position].partition("=")
        position += 1
        if re.fullmatch(r"-p[\d.:]+(?:/tcp)?", flag):
            flag, value = "-p", flag[2:]
        elif not equals:
            if flag in _SWITCHES or re.fullmatch(r"-[ditqP]+", flag):
                continue
            value = words[position] if position < len(words) else ""
            position += 1
        if flag in ("-e", "--env") and "=" in value:
            inside.update([tuple(value.split("=", 1))])  # type: ignore[list-item]
        elif flag in ("-p", "--publish") and published is not None:
            published.update(publication(value))
        elif flag in ("--network", "--net") and value == "host":
            published = None
        elif flag == "--entrypoint" and value:
            entrypoint = [value]
    if words[verb] == "exec":
        return None, inside, words[position + 1 :]
    image = words[position] if position < len(words) else ""
    return Place(image, published), inside, entrypoint + words[position + 1 :]


def publication(text: str) -> dict[int, tuple[str, int]]:
    """Read ``[address:]port-of-the-host:port[/tcp]``; a port that the container tool chooses is not known."""
    match = re.fullmatch(r"(?:(\[[0-9a-fA-F:]+\]|[\d.]+):)?(\d{1,5}):(\d{1,5})(?:/tcp)?", text)
    return {int(match[3]): (match[1] or "", int(match[2]))} if match else {}


def _kind(image: str) -> str:
    """Which engine an image holds; its tag may be anything."""
    return next((engine for pattern, engine in _IMAGES if pattern.search(image)), "")


def _version(image: str) -> str | None:
    """The version that a tag tells: not the month in tags of NVIDIA (25.09-py3), nor a date."""
    match = next((found for pattern, _ in _IMAGES if (found := pattern.search(image))), None)
    told = match[1] if match else None
    return told if told and int(told.split(".")[0]) < 10 else None


def _engine(words: list[str], environment: Mapping[str, str], image: str) -> tuple[str, list[str]] | None:
    """Which engine a command starts, and the engine's own arguments."""
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        base = _base(word)
        if base == "vllm" and rest[:1] == ["serve"]:
            return _fork("vllm", image, environment, rest), rest[1:]
        if word.startswith("vllm.entrypoints"):
            return _fork("vllm", image, environment, rest), rest[1:] if rest[:1] == ["serve"] else rest
        if word == "sglang.launch_server" or (base == "sglang" and rest[:1] == ["serve"]):
            return "sglang", rest[1:] if base == "sglang" else rest
        if base in ("mindie_service", "mindieservice_daemon"):
            return "mindie", rest
    # an image whose entrypoint is the engine takes arguments alone
    alone = not words or words[0] == "serve" or words[0].startswith("-")
    if image and ((words and alone) or (image == "vllm" and (alone or _is_model(words[0])))):
        rest = words[1:] if words[:1] == ["serve"] else words
        return _fork(image, image, environment, rest), rest
    return None


def _is_model(word: str) -> bool:
    """Whether the first argument of vLLM's own image is the model, and no program that is run in it instead."""
    return "/" in word and not re.match(r"/(?:usr/|opt/)?s?bin/", word)


def _fork(engine: str, image: str, environment: Mapping[str, str], rest: Sequence[str]) -> str:
    ascend = any(key.startswith(("ASCEND_", "HCCL_", "VLLM_ASCEND_")) or key == "DYNAMIC_EPLB" for key in environment)
    if engine == "vllm" and (image == "vllm-ascend" or ascend or any("dynamic_eplb" in word for word in rest)):
        return "vllm-ascend"
    return engine
