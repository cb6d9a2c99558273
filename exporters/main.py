"""The program k3observe-exporter. Imports stay inside functions: ``--version`` must cost no more than Python itself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from k3observe.version import __version__

if TYPE_CHECKING:
    import argparse
    import logging

    from k3observe.exporters.collector import Collector
    from k3observe.exporters.registry import Registry
    from k3observe.exporters.web.toolkit import WebConfig

STOP_SECONDS = 0.3


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the exporter and end the process: 0 stopped or written, 1 it could not serve or read, 2 bad input."""
    argv = sys.argv[1:] if argv is None else argv
    _open_standard_streams()
    if "--version" in argv:
        _leave(_print(f"k3observe-exporter {__version__}\n".encode()))
    from k3observe.exporters import flags

    if "--help" in argv or "-h" in argv:
        _leave(_print(flags.help_text().encode()))
    _end_at_signals()
    try:
        args = flags.parse(argv, os.environ)
    except flags.FlagError as error:
        _bad_input(str(error))
    try:
        _leave(_run(args))
    except SystemExit as end:
        _leave(int(end.code or 0))


def _run(args: argparse.Namespace) -> int:
    import prometheus_client

    from k3observe.exporters import flags, logs
    from k3observe.exporters.registry import Registry

    log = logs.configure(args.log_level, args.log_format)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    once = args.once or args.textfile
    web = None if once else _web_config(args, log)
    collectors: list[Collector] = []
    for name in args.collect:
        try:
            collectors.append(flags.collector_module(name).from_args(args, log.getChild(name)))
        except ValueError as error:
            _bad_input(str(error))
    registry = Registry(collectors, log)
    try:
        return _once(args, collectors, registry, log) if once else _serve(args, web, collectors, registry, log)
    finally:
        _stop(collectors)


def _web_config(args: argparse.Namespace, log: logging.Logger) -> WebConfig | None:
    if not args.web_config_file:
        return None
    from k3observe.exporters.web.toolkit import WebConfig, WebConfigError  # loads PyYAML and bcrypt

    try:
        return WebConfig(args.web_config_file, log)
    except WebConfigError as error:
        _bad_input(str(error))


def _serve(
    args: argparse.Namespace, web: WebConfig | None, collectors: Sequence[Collector], registry: Registry,
    log: logging.Logger,
) -> int:
    import signal

    from k3observe.exporters.web.app import App
    from k3observe.exporters.web.server import Server, listen
    from k3observe.exporters.web.snapshots import Snapshots

    listeners = []
    for host, port in args.web_listen_address:
        try:
            listeners += listen(host, port)
        except OSError as error:
            _complain(f"--web.listen-address: {host}:{port}: {error.strerror}")
            return 1
    if web:
        app = App(Snapshots(registry), collectors, args.web_telemetry_path, web.authenticate, web.headers)
        server = Server(listeners, app, log, web.tls)
    else:
        server = Server(listeners, App(Snapshots(registry), collectors, args.web_telemetry_path), log)

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends at once
        server.stop()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if not _start(collectors):
        return 1
    for listener in listeners:
        host, port = listener.getsockname()[:2]
        log.info("listening on %s", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    server.run()
    log.info("stopping")
    return 0


def _once(
    args: argparse.Namespace, collectors: Sequence[Collector], registry: Registry, log: logging.Logger
) -> int:
    import time

    from prometheus_client import generate_latest

    from k3observe.exporters import families, textfile

    if not _start(collectors):
        return 1
    end = time.monotonic() + args.once_timeout
    while not all(collector.ready() for collector in collectors) and time.monotonic() < end:
        time.sleep(0.02)
    waiting = [collector.name for collector in collectors if not collector.ready()]
    if waiting:
        log.error("no reading of %s within %g s", ", ".join(waiting), args.once_timeout)
    read = any(metric.name == families.SOURCE_LAST_SUCCESS.name for metric in registry.collect())
    if not read and not waiting:
        log.error("nothing could be read: the lines above say why")
    body = registry.encode(generate_latest)
    if args.textfile:
        try:
            textfile.write(args.textfile, body)
        except OSError as error:
            _complain(f"--textfile: {args.textfile}: {error.strerror}")
            return 1
    printed = _print(body) if args.once else 0
    return 1 if waiting or not read else printed


def _start(collectors: Sequence[Collector]) -> bool:
    try:
        for collector in collectors:
            collector.start()
    except (RuntimeError, MemoryError) as error:
        _complain(f"cannot start: {error or 'out of memory'}: raise the limits of memory and threads")
        return False
    return True


def _stop(collectors: Sequence[Collector]) -> None:
    """Ask the collectors to stop, in a thread of its own: one that hangs does not hold up the end."""
    import threading

    def stop() -> None:
        for collector in collectors:
            collector.stop()

    thread = threading.Thread(target=stop, daemon=True)
    with contextlib.suppress(RuntimeError):  # out of threads; the process ends anyway
        thread.start()
        thread.join(STOP_SECONDS)


def _leave(status: int) -> NoReturn:
    """End without waiting for threads: one may be stuck in a driver."""
    os._exit(status)


def _end_at_signals() -> None:
    """End in order, and without a traceback, when a signal comes before the server runs; SIGHUP never ends it.

    As process 1 of a container, too, for which the kernel ignores signals that have no handler. Reloading has nothing
    to do: files of ``--web.config.file`` are read again when they change. A handler, unlike SIG_IGN, is not inherited.
    """
    import signal

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    # What the parent ignores and blocks is inherited: an ignored SIGCHLD would take the exit status of npu-smi away.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def _open_standard_streams() -> None:
    """Give a process that was started without some of them /dev/null: else a socket would get their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):  # it is there for the system, if not for Python
                os.fstat(descriptor)
                continue
            os.open(os.devnull, os.O_RDWR)  # takes the lowest descriptor, which is this one
            if name == "stderr":
                sys.stderr = open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _print(body: bytes) -> int:
    """Write to standard output; return 1 when that does not take it."""
    left = memoryview(body)
    try:
        while left:
            left = left[os.write(1, left) :]
    except OSError as error:
        _complain(f"cannot write to standard output: {error.strerror}")
        return 1
    return 0


def _bad_input(message: str) -> NoReturn:
    _complain(message)
    _leave(2)


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody is there to hear it
        print(f"k3observe-exporter: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
