"""The collector ``experts``: a source of loads, its window, the windows of other nodes, and what is served of them."""

from __future__ import annotations

import argparse
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric

from k3observe.exporters import families
from k3observe.exporters.collector import SourceStatus, source_families
from k3observe.exporters.experts import counts, formats
from k3observe.exporters.experts.files import read_file
from k3observe.exporters.experts.heatmap import HeatMapReader
from k3observe.exporters.experts.loads import BalanceReading, Event, ExpertLoads
from k3observe.exporters.experts.log import LogSource
from k3observe.exporters.experts.merge import all_phases
from k3observe.exporters.experts.pages import Fetcher
from k3observe.exporters.experts.peers import PATH, Peers, add_up, window_url
from k3observe.exporters.experts.polled import CountsReader, PolledSource
from k3observe.exporters.experts.report import Options, rebalance_families, report
from k3observe.exporters.experts.source import Source
from k3observe.exporters.experts.window import Window
from k3observe.exporters.fetch import client_context, endpoint
from k3observe.exporters.flags import bounded, checked, duration

MAX_MODELS = 4
K3_MOE_LAYERS = 92
SOURCES = {"log": "log_file", "metrics": "metrics_url", "file": "file", "http": "http_url", "plugin": "plugin_dir"}
"""Sources and the flag that each needs."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags ``--experts.*``."""
    group = parser.add_argument_group("experts")

    def add(name: str, **options: object) -> None:
        group.add_argument(f"--experts.{name}", dest=f"experts_{name.replace('-', '_')}", **options)  # type: ignore[arg-type]

    add("source", choices=tuple(SOURCES), help="Where expert loads come from.")
    add("log-file", metavar="FILE",
        help="The engine's log for source log: a file, a named pipe, a pattern of files (/logs/*.log), or - for stdin.")
    add("log-from-start", action="store_true", help="Read the log from its start instead of its end.")
    add("engine", choices=formats.ENGINES, help="Read only this engine's log lines; default all that are known.")
    add("engine-version", type=checked(formats.check_version), metavar="VERSION",
        help="The engine's version: vLLM's line means the balance of ranks from 0.28 on only.")
    add("metrics-url", type=checked(_url), metavar="URL", help="SGLang's /metrics for source metrics.")
    add("file", type=Path, metavar="FILE", help="JSON of expert counts for source file.")
    add("http-url", type=checked(_url), metavar="URL", help="Page with JSON of expert counts for source http.")
    add("plugin-dir", type=Path, metavar="DIR", help="Directory that the engine's plugin publishes to.")
    add("interval", type=duration(0.05, 86400), default=10.0, metavar="DURATION", help="Time between two reads.")
    add("timeout", type=duration(0.05, 86400), default=5.0, metavar="DURATION", help="Time a read over HTTP may take.")
    add("window", type=duration(0.05, 86400), default=300.0, metavar="DURATION", help="Length of the sliding window.")
    add("min-load", type=bounded(float, 0, 1e9), default=100.0, metavar="N",
        help="Mean assignments per rank (or expert) and layer below which no balance is exported: with few tokens "
        "even a perfect router looks uneven.")
    add("model-name", metavar="NAME", help="Label model_name where the source does not tell it.")
    add("moe-layers", type=bounded(int, 1, 99999), default=K3_MOE_LAYERS, metavar="N",
        help="MoE layers of the model, to turn sums over layers in log lines into tokens per layer.")
    add("ranks", type=bounded(int, 1, 99999), metavar="N", help="Expert-parallel ranks of the group.")
    add("rank-device", action="append", type=_rank_device, default=[], metavar="RANK=DEVICE[/UUID]",
        help="The device a rank runs on; repeatable.")
    add("layers", action="store_true", help="Export the balance of each layer.")
    add("top", type=bounded(int, 0, 100), default=0, metavar="N",
        help="Export the N most loaded experts and the number of dead ones.")
    add("peer", action="append", type=checked(window_url), default=[], metavar="URL",
        help="Sidecar of another node of the same expert-parallel group, whose window is added; repeatable.")
    add("window-only", action="store_true",
        help=f"Serve {PATH} for the sidecar that adds the nodes up, and export no values of this node alone.")
    add("ca-file", type=Path, metavar="FILE", help="Certificate authority of https sources and peers.")
    add("insecure-skip-verify", action="store_true", help="Do not verify the certificates of https sources and peers.")
    add("authorization-file", type=Path, metavar="FILE",
        help="File with the value of the header Authorization for sources and peers, such as Basic dXNlcjpwYXNz.")


def from_args(args: argparse.Namespace, log: logging.Logger) -> ExpertsCollector:
    """Return the collector. Raises ValueError where flags do not fit together."""
    if args.experts_source is None and not args.experts_peer:
        raise ValueError(f"--experts.source: choose one of {', '.join(SOURCES)}")
    if args.experts_peer and args.experts_window_only:
        raise ValueError("--experts.window-only: the sidecar with --experts.peer is the one that exports the values")
    for name, flag in SOURCES.items():
        given = getattr(args, f"experts_{flag}") is not None
        if given != (name == args.experts_source):
            verb = "is read only by" if given else "is needed for"
            raise ValueError(f"--experts.{flag.replace('_', '-')}: {verb} --experts.source {name}")
    instance = uuid.uuid4().hex
    urls = [args.experts_metrics_url, args.experts_http_url, *args.experts_peer]
    context = None
    if any(url and url.startswith("https:") for url in urls):
        context = client_context(args.experts_ca_file, args.experts_insecure_skip_verify)
    fetcher = Fetcher(args.experts_timeout, counts.MAX_BYTES, context, args.experts_authorization_file)
    peers = Peers(args.experts_peer, fetcher, args.experts_interval, instance) if args.experts_peer else None
    return ExpertsCollector(
        _source(args, fetcher), peers, log, instance=instance, window_seconds=args.experts_window,
        options=Options(args.experts_min_load, args.experts_layers, args.experts_top, args.experts_ranks),
        window_only=args.experts_window_only,
        places={rank: (device, identity) for rank, device, identity in args.experts_rank_device})


def _source(args: argparse.Namespace, fetcher: Fetcher) -> Source | None:
    model, seconds = args.experts_model_name or "", args.experts_interval
    if args.experts_source == "log":
        reader = formats.LineReader(
            args.experts_engine, args.experts_engine_version, model, args.experts_moe_layers, args.experts_ranks)
        return LogSource(args.experts_log_file, reader, from_start=args.experts_log_from_start)
    if args.experts_source == "metrics":
        url = args.experts_metrics_url
        return PolledSource(
            "metrics", url, partial(fetcher.get, url), HeatMapReader(model, args.experts_ranks), seconds)
    if args.experts_source == "file":
        path = args.experts_file
        return PolledSource("file", str(path), partial(read_file, path, counts.MAX_BYTES), CountsReader(model), seconds)
    if args.experts_source == "http":
        url = args.experts_http_url
        return PolledSource("http", url, partial(fetcher.get, url), CountsReader(model), seconds)
    if args.experts_source == "plugin":
        from k3observe.exporters.experts.plugin import PluginSource

        return PluginSource(args.experts_plugin_dir, seconds)
    return None


class ExpertsCollector:
    """Keeps the window of a source and serves its balance, alone or added up with those of ``peers``."""

    name = "experts"

    def __init__(
        self,
        source: Source | None,
        peers: Peers | None,
        log: logging.Logger,
        *,
        instance: str,
        window_seconds: float,
        options: Options,
        window_only: bool = False,
        places: Mapping[int, tuple[str, str]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._peers, self._log = source, peers, log
        self._instance, self._options, self._window_only = instance, options, window_only
        self._clock = clock
        self._window = Window(window_seconds, options.min_load, clock, MAX_MODELS)
        self._source_status = SourceStatus("experts", source.name, source.reasons) if source else None
        self._peers_status = SourceStatus("experts", "peers", peers.reasons) if peers else None
        self._lock = threading.Lock()
        self._places = dict(places or {})
        self._rebalances: dict[str, int] = {}
        self._rebalance_seconds: dict[str, float] = {}
        self._said: set[str] = set()
        self.routes: dict[str, Callable[[], tuple[str, bytes]]] = {PATH: self._window_page}

    def start(self) -> None:
        """Start the source's and the peers' threads."""
        if self._source and self._source_status:
            self._source.start(self._take, self._source_status, self._log)
        if self._peers and self._peers_status:
            self._peers.start(self._peers_status, self._log)

    def stop(self) -> None:
        """Ask the threads to end."""
        if self._source:
            self._source.stop()
        if self._peers:
            self._peers.stop()

    def ready(self) -> bool:
        """Whether the source and every peer were read once."""
        return (self._source_status is None or self._source_status.tried) and (
            self._peers is None or self._peers.tried)

    def collect(self) -> Iterable[Metric]:
        """Yield the values of the window, unless another sidecar exports them, and the state of the sources."""
        yield from source_families(status for status in (self._source_status, self._peers_status) if status)
        if self._window_only:
            return
        windows = [self._window.loads()]
        if self._peers:
            windows.extend(map(list, self._peers.windows()))
        loads, problems = add_up(windows)
        for problem in problems:
            self._say(problem)
        if len(names := list(dict.fromkeys(part.model for part in loads))) > MAX_MODELS:
            self._say(f"peers have more than {MAX_MODELS} models: those after {names[MAX_MODELS - 1]!r} are left out")
            loads = [part for part in loads if part.model in names[:MAX_MODELS]]
        readings = self._window.readings()
        yield from report(all_phases(loads), readings, self._options)
        models = dict.fromkeys([*(part.model for part in loads), *(reading.model for reading in readings)])
        with self._lock:
            yield from rebalance_families(self._rebalances, self._rebalance_seconds)
        yield self._rank_info(models)

    def _rank_info(self, models: Iterable[str]) -> Metric:
        """Return the devices of ranks that the flags name, for every model."""
        info = families.EXPERT_RANK_INFO.new()
        for model in models:
            for rank, place in self._places.items():
                info.add_metric((model, str(rank), *place), 1)
        return info

    def _take(self, event: Event) -> None:
        if isinstance(event, ExpertLoads | BalanceReading):
            if not self._window.add(event):
                self._say(f"a reading of model {event.model!r} was left out: it is older than the window, or there are "
                          f"more than {MAX_MODELS} models")
            elif self._source and self._source.name in ("log", "plugin"):
                # both tell of rearrangements: none so far is 0, so that the first one is an increase
                self._count_rebalances(event.model, 0)
        else:
            self._count_rebalances(event.model, 1, event.seconds)

    def _count_rebalances(self, model: str, number: int, seconds: float | None = None) -> None:
        """Count for the models named last: names come from what is read, and an engine may be given another model."""
        with self._lock:
            self._rebalances[model] = self._rebalances.pop(model, 0) + number
            if seconds is not None:
                self._rebalance_seconds[model] = seconds
            if len(self._rebalances) > MAX_MODELS:
                oldest = next(iter(self._rebalances))
                del self._rebalances[oldest]
                self._rebalance_seconds.pop(oldest, None)

    def _window_page(self) -> tuple[str, bytes]:
        return "application/json", counts.render(self._instance, self._clock(), self._window.loads())

    def _say(self, text: str) -> None:
        """Log a warning once; the texts hold names from outside, so that their number is bounded."""
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            self._log.warning("%s", text)


def _url(text: str) -> str:
    return endpoint(text).url


def _rank_device(text: str) -> tuple[int, str, str]:
    match = re.fullmatch(r"(\d{1,4})=([^/\s]{1,32})(?:/(\S{1,64}))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no RANK=DEVICE[/UUID] such as 8=0/GPU-12ab")
    return int(match[1]), match[2], match[3] or ""
