"""The command ``k3observe-notify``."""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import prometheus_client

from k3observe.config.errors import ConfigError
from k3observe.exporters import logs
from k3observe.exporters.flags import bounded
from k3observe.exporters.web.toolkit import WebConfig, WebConfigError
from k3observe.notify import config
from k3observe.notify.app import App
from k3observe.notify.delivery import Delivery, Settings
from k3observe.notify.metrics import Metrics
from k3observe.notify.server import Server
from k3observe.version import __version__

PROGRAM = "k3observe-notify"
_ENDING = (signal.SIGTERM, signal.SIGINT)
_EXAMPLES = """\
examples:
  k3observe-notify --config.file /etc/k3observe/notify.yaml
  k3observe-notify --config.file notify.yaml --web.listen-address 10.0.0.5:19304 --log.format json

notify.yaml:
  robots:
    ops-cn:
      type: dingtalk                # dingtalk | feishu | lark | wecom
      token_file: secrets/token     # the robot's token, or its webhook URL
      secret_file: secrets/secret   # its signing secret (dingtalk, feishu, lark)
      language: zh-CN               # en | zh-CN
      timezone: Asia/Shanghai

alertmanager.yml:
  receivers: [{name: ops-cn, webhook_configs: [{url: "http://127.0.0.1:19304/ops-cn"}]}]

exit codes: 0 ended by a signal, 1 the address cannot be used, 2 bad flags or configuration
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    flags = _parser().parse_args(argv)
    log = logs.configure(flags.log_level, flags.log_format)
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # its lines hold URLs, and those hold tokens
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        robots = config.load(flags.config_file)
        web = WebConfig(flags.web_config_file, log) if flags.web_config_file else None
    except (ConfigError, WebConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    for robot in robots:
        if _in_clear(robot.base_url):
            log.warning("%s: base_url is plain http: the robot's token crosses the network in clear", robot.name)
    settings = Settings(flags.queue_length, flags.delivery_timeout, flags.delivery_retry, flags.delivery_give_up)
    metrics = Metrics((robot.name for robot in robots), settings.queue)
    deliveries = {robot.name: Delivery(robot, settings, metrics) for robot in robots}
    app = App(deliveries, metrics, web)
    host, port = flags.listen_address
    try:
        server = Server(host, port, app, web.tls if web else lambda: None)
    except OSError as error:
        log.error("--web.listen-address: %s:%d cannot be used: %s", host, port, error.strerror)
        return 1
    # blocked in all threads and waited for in this one: a handler would run only when this thread happens to wake up
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for delivery in deliveries.values():
        delivery.start()
    threading.Thread(target=server.serve_forever, name="serve", daemon=True).start()
    log.info("%s %s serves on %s:%d for %s", PROGRAM, __version__, host, server.server_port, ", ".join(deliveries))
    signal.sigwait(_ENDING)
    return _drain(app, server, tuple(deliveries.values()), flags.shutdown_timeout, log)


def _drain(app: App, server: Server, deliveries: Iterable[Delivery], timeout: float, log: logging.Logger) -> int:
    """Take nothing more and deliver what waits, for at most ``timeout`` seconds."""
    app.drain()
    end = time.monotonic() + timeout
    for delivery in deliveries:
        delivery.stop()
    for delivery in deliveries:
        if left := delivery.join(max(0.0, end - time.monotonic())):
            log.error("%s: %d notifications are lost: not delivered within %g s", delivery.robot.name, left, timeout)
    server.shutdown()
    server.server_close()
    log.info("ended")
    return 0


def _in_clear(base_url: str) -> bool:
    parts = urlsplit(base_url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Brings Alertmanager's notifications to group robots of DingTalk, Feishu (Lark) and WeCom.",
        epilog=_EXAMPLES,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=120),
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    add(
        "--config.file",
        dest="config_file",
        type=Path,
        default=Path("notify.yaml"),
        metavar="FILE",
        help="The robots (default: notify.yaml).",
    )
    add(
        "--web.listen-address",
        dest="listen_address",
        type=_address,
        default=("127.0.0.1", 19304),
        metavar="[HOST]:PORT",
        help="Where to serve (default: 127.0.0.1:19304).",
    )
    add(
        "--web.config.file",
        dest="web_config_file",
        type=Path,
        metavar="FILE",
        help="TLS and basic auth in the format of Prometheus's exporter-toolkit.",
    )
    add(
        "--queue.length",
        dest="queue_length",
        type=bounded(int, 1, 10_000),
        default=100,
        metavar="N",
        help="Notifications that may wait for a robot; when full, Alertmanager is told to try again (default: 100).",
    )
    add(
        "--delivery.timeout",
        dest="delivery_timeout",
        type=bounded(float, 0.1, 60),
        default=10.0,
        metavar="SECONDS",
        help="How long a platform may take to answer (default: 10).",
    )
    add(
        "--delivery.retry",
        dest="delivery_retry",
        type=bounded(float, 0.01, 300),
        default=1.0,
        metavar="SECONDS",
        help="First wait after a failure, doubled with each further one up to 300 (default: 1).",
    )
    add(
        "--delivery.give-up",
        dest="delivery_give_up",
        type=bounded(float, 1, 86_400),
        default=3600.0,
        metavar="SECONDS",
        help="Age at which a notification that cannot be delivered is dropped (default: 3600).",
    )
    add(
        "--shutdown.timeout",
        dest="shutdown_timeout",
        type=bounded(float, 0, 300),
        default=10.0,
        metavar="SECONDS",
        help="How long SIGTERM waits for what is queued (default: 10).",
    )
    add("--log.level", dest="log_level", choices=logs.LEVELS, default="info", help="Least level that is logged.")
    add("--log.format", dest="log_format", choices=logs.FORMATS, default="logfmt", help="Format of the log.")
    return parser


def _address(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address: write HOST:PORT, for example 127.0.0.1:19304")
    return match[1].strip("[]") or "0.0.0.0", int(match[2])  # noqa: S104


if __name__ == "__main__":
    sys.exit(main())
