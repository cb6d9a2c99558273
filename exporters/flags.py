"""Flags in the style of Prometheus exporters, each also an environment variable and a key of ``--config.file``.

The command line wins over the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from k3observe.exporters import logs

PROGRAM = "k3observe-exporter"
PACKAGES = {"gpu": "gpu", "npu": "npu", "experts": "experts", "kv-cache": "kvcache"}
"""Collectors by the name they have in flags, and their packages."""

_T = TypeVar("_T")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "")


class FlagError(Exception):
    """A flag, variable or configuration file that cannot be used."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(message.removeprefix("argument "))


def _collectors(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in PACKAGES:
            raise argparse.ArgumentTypeError(f"no collector {name!r}: choose from {', '.join(PACKAGES)}")
    return names


def _address(text: str) -> tuple[str, int]:
    """Split ``[HOST]:PORT``; an IPv6 host stands in brackets."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[^:\[\]]*):([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write HOST:PORT, :PORT or [IPV6]:PORT")
    return match[1].strip("[]"), int(match[2])


def _url_path(text: str) -> str:
    if not text.startswith("/") or any(char in text for char in "?# ") or text.startswith("/-/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no path: it starts with / and holds no ?, # or blank")
    return text


def _file(text: str) -> Path | None:
    """An empty value is none: start scripts pass ``--web.config.file=`` where there is no file."""
    return Path(text) if text else None


def _textfile(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError(f"{text!r}: node_exporter reads only files named *.prom")
    return Path(text)


def _core_parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM, allow_abbrev=False, add_help=False,
        description="Serves what neither engine nor other exporters tell reliably: accelerators, expert balance, "
        "KV cache.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=120))
    add = parser.add_argument
    add("-h", "--help", dest="help", action="store_true", help="Print the flags of all collectors and exit.")
    add("--version", dest="version", action="store_true", help="Print the version and exit.")
    add("--collect", dest="collect", action="extend", type=_collectors, metavar="NAME[,NAME]",
        help=f"Collectors to run: {', '.join(PACKAGES)}; repeatable.")
    add("--config.file", dest="config_file", type=_file, metavar="FILE",
        help="YAML file whose keys are flag names without the dashes; flags and variables win over it.")
    add("--once", dest="once", action="store_true",
        help="Print one exposition and exit: with 1 where nothing could be read.")
    add("--once.timeout", dest="once_timeout", type=duration(0, 3600), default=15.0, metavar="DURATION",
        help="How long --once and --textfile wait for the first reading of every collector.")
    add("--textfile", dest="textfile", type=_textfile, metavar="FILE",
        help="Write one exposition atomically to a *.prom file, for node_exporter's textfile directory, and exit.")
    add("--web.listen-address", dest="web_listen_address", action="append", type=_address,
        metavar="[HOST]:PORT", default=[("", 19303)], help="Address to serve on; repeatable (default :19303).")
    add("--web.telemetry-path", dest="web_telemetry_path", type=_url_path, default="/metrics", metavar="PATH",
        help="Path of the metrics.")
    add("--web.config.file", dest="web_config_file", type=_file, metavar="FILE",
        help="TLS and basic auth in the format of Prometheus's exporter-toolkit.")
    add("--log.level", dest="log_level", choices=logs.LEVELS, default="info", help="Least level that is logged.")
    add("--log.format", dest="log_format", choices=logs.FORMATS, default="logfmt", help="Format of the log.")
    return parser


def collector_module(name: str) -> Any:
    """Import the module of a collector: ``add_flags(parser)`` and ``from_args(args, log)``."""
    return importlib.import_module(f"k3observe.exporters.{PACKAGES[name]}.collector")


def environment_name(flag: str) -> str:
    """Return the variable of a flag: ``--web.listen-address`` is ``K3OBSERVE_WEB_LISTEN_ADDRESS``."""
    return "K3OBSERVE_" + flag.lstrip("-").upper().replace(".", "_").replace("-", "_")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Return the flags, those of the chosen collectors included; only their modules are imported.

    Raises FlagError.
    """
    first = _layers(_core_parser(), argv, environ, strict=False)
    collect = tuple(dict.fromkeys(cast("list[str]", first.collect or [])))
    parser = _core_parser()
    for name in collect:
        collector_module(name).add_flags(parser)
    args = _layers(parser, argv, environ, strict=True)
    args.collect = collect
    if not collect:
        raise FlagError(f"--collect: name at least one of {', '.join(PACKAGES)}")
    return args


def help_text() -> str:
    """Return the help with the flags of all collectors and their variables."""
    parser = _core_parser()
    for name in PACKAGES:
        collector_module(name).add_flags(parser)
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS) or action.dest in ("help", "version"):
            continue
        notes = []
        shown = action.default if isinstance(action.default, (list, tuple, set, frozenset)) else [action.default]
        spell = spelled if action.metavar == "DURATION" else str
        values = [spell(value) for value in shown if value not in (None, False, argparse.SUPPRESS)]
        if values and "default" not in str(action.help):
            notes.append("default " + ",".join(values).replace("%", "%%"))
        notes.append("$" + environment_name(_flag(action)))
        action.help = f"{action.help} ({'; '.join(notes)})"
    return parser.format_help()


def _flag(action: argparse.Action) -> str:
    return next((option for option in action.option_strings if option.startswith("--")), action.dest)


def _layers(
    parser: _Parser, argv: Sequence[str], environ: Mapping[str, str], *, strict: bool
) -> argparse.Namespace:
    """Parse each source by itself, so that a list given twice replaces the weaker one instead of growing it."""
    actions = {_flag(action): action for action in parser._actions if action.option_strings}
    defaults = {action.dest: _default(action) for action in actions.values()}
    required = [flag for flag, action in actions.items() if action.required]
    for action in actions.values():
        action.default, action.required = argparse.SUPPRESS, False
    given, unknown = parser.parse_known_args(list(argv))
    if strict and unknown:
        raise FlagError(_unknown(unknown[0], actions))
    command_line = vars(given)
    environment: dict[str, Any] = {}
    for flag, action in actions.items():
        variable = environment_name(flag)
        if environ.get(variable) and action.dest not in ("help", "version"):
            values = environ[variable].split(",") if _repeats(action) else [environ[variable]]
            environment.update(_parse_values(parser, action, flag, values, variable))
    path = command_line.get("config_file") or environment.get("config_file")
    file = _config_file(parser, actions, path, strict=strict) if path else {}
    merged = {**defaults, **file, **environment, **command_line}
    for flag in required if strict else ():
        if merged.get(actions[flag].dest) is None:
            raise FlagError(f"{flag}: must be given")
    return argparse.Namespace(**merged)


def _default(action: argparse.Action) -> Any:
    if isinstance(action.default, str) and callable(action.type):
        return action.type(action.default)
    return None if action.default is argparse.SUPPRESS else action.default


def _repeats(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")


def _parse_values(
    parser: _Parser, action: argparse.Action, flag: str, values: Sequence[str], where: str
) -> dict[str, Any]:
    """Parse the values of one flag from a place other than the command line."""
    if action.nargs == 0:
        text = values[0].strip().lower()
        if text not in (*_TRUE, *_FALSE):
            raise FlagError(f"{where}: {values[0]!r} is neither true nor false")
        if not isinstance(action, argparse.BooleanOptionalAction):
            return {action.dest: (text in _TRUE) == (action.const is not False)}
        return {action.dest: text in _TRUE}
    if not _repeats(action) and len(values) != 1:
        raise FlagError(f"{where}: takes one value, not a list")
    words = [flag, *values] if action.nargs in ("*", "+") else [f"{flag}={value}" for value in values]
    try:
        return vars(parser.parse_args(words))
    except FlagError as error:
        raise FlagError(f"{where}: {str(error).removeprefix(f'{flag}: ')}") from None


def _unknown(word: str, actions: Collection[str]) -> str:
    name = word.split("=")[0]
    for collector in PACKAGES:
        if name.startswith(f"--{collector}.") and not any(flag.startswith(f"--{collector}.") for flag in actions):
            return f"{name}: no such flag of a running collector: is {collector} missing in --collect?"
    if not name.startswith("-"):
        return f"{word!r}: arguments without a flag are not accepted"
    import difflib  # only for a mistake: it is memory of a process that runs for months

    close = difflib.get_close_matches(name, list(actions), 1)
    return f"{name}: unknown flag" + (f": did you mean {close[0]}?" if close else ": see --help")


def _config_file(
    parser: _Parser, actions: Mapping[str, argparse.Action], path: Path, *, strict: bool
) -> dict[str, Any]:
    from k3observe.exporters import yamlfile  # loads PyYAML, which a process without a file must not

    try:
        root = yamlfile.load(path)
    except yamlfile.YamlError as error:
        raise FlagError(str(error)) from None
    if not isinstance(root.value, dict):
        raise FlagError(f"{path}:{root.line}: must be a mapping of flag names to values")
    values: dict[str, Any] = {}
    for key, node in root.value.items():
        where, flag = f"{path}:{node.line}: {key}", f"--{key}"
        action = actions.get(flag)
        if action is None or action.dest in ("help", "version", "config_file"):
            if strict:
                problem = _unknown(f"--{key.lstrip('-')}", actions).replace("mean --", "mean ")
                raise FlagError(f"{path}:{node.line}: {problem.removeprefix('--')}")
            continue
        items = node.value if isinstance(node.value, list) else [node]
        texts = [item.value for item in items if isinstance(item.value, str)]
        if len(texts) != len(items):
            raise FlagError(f"{where}: must be a value or a list of values")
        values.update(_parse_values(parser, action, flag, texts, where))
    return values


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return ``parse`` as an argparse type, so that the message of its ValueError is shown; argparse hides it."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def bounded(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    """Return an argparse type for a number between two bounds, both included."""

    def convert(text: str) -> float:
        try:
            if not text.isascii() or "_" in text:  # Python takes them, nobody else
                raise ValueError
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g}")
        return value

    return convert


def duration(least: float, most: float) -> Callable[[str], float]:
    """Return an argparse type for seconds (``0.5``) or a time with its unit (``500ms``, ``30s``, ``5m``, ``1h``)."""

    def convert(text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s|m|h)?", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 30s or 5m")
        seconds = float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1)
        if not least <= seconds <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g}s and {most:g}s")
        return seconds

    return convert


def spelled(seconds: float) -> str:
    """Return a duration with its unit, as ``duration`` reads it."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"
