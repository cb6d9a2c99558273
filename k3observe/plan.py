"""Stack and catalogue -> what is recorded, what is armed, and what is not and why.

Pure: no clock, no network, no files beyond those the caller loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from k3observe.arming import Armed, Blind, Settings, arm, meets
from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.model import Entry, Gap, Text
from k3observe.catalogue.version import Version, VersionRange
from k3observe.config.errors import Path, Problem, did_you_mean
from k3observe.config.loader import Loaded
from k3observe.config.model import AlertSettings, Config, Service
from k3observe.config.values import Duration
from k3observe.expert_source import LOADS, Lack
from k3observe.facts import ASCEND_ENGINES, facts
from k3observe.rules import Pack

__all__ = ["Armed", "Blind", "Plan", "Settings", "exporter_jobs", "plan"]


@dataclass(frozen=True)
class Plan:
    """Everything the outputs are rendered from."""

    config: Config
    catalogue: Catalogue
    pack: Pack
    sources: Mapping[str, Mapping[str, Entry | Gap]] = field(repr=False)
    """Service, signal -> the entry that gives it there, or why nothing does."""
    armed: tuple[Armed, ...] = ()
    blind: tuple[Blind, ...] = ()

    @cached_property
    def facts(self) -> dict[str, Mapping[str, Any]]:
        """Facts of each service, by its name."""
        return {service.name: facts(service) for service in self.config.services}

    @cached_property
    def services(self) -> dict[str, Service]:
        """Services by name."""
        return {service.name: service for service in self.config.services}

    def entry(self, service: str, signal: str) -> Entry | None:
        """The catalogue entry from which a service's signal is recorded, if there is one."""
        found = self.sources[service].get(signal)
        return found if isinstance(found, Entry) else None

    def derives(self, service: str, signal: str) -> bool:
        """Whether a recording rule works the signal out from others, rather than reading it from a source."""
        derived = self.pack.derived.get(signal)
        return (
            derived is not None
            and all(meets(self.facts[service].get(fact), value) for fact, value in derived.when.items())
            and all(self.has(service, need) for need in derived.needs)
            and (not derived.any or any(self.has(service, need) for need in derived.any))
        )

    def has(self, service: str, signal: str) -> bool:
        """Whether a signal, recorded or derived, exists for a service."""
        return self.derives(service, signal) or self.entry(service, signal) is not None

    def why_not(self, service: str, signal: str) -> Gap | None:
        """The reason why a service lacks a signal; None where it has it."""
        if self.has(service, signal):
            return None
        found = self.sources[service].get(signal)
        if isinstance(found, Gap):
            return found
        derived = self.pack.derived[signal]
        return next((gap for need in (*derived.needs, *derived.any) if (gap := self.why_not(service, need))), None)

    @cached_property
    def thresholds(self) -> dict[str, dict[str, float | None]]:
        """Service, alert -> the threshold in force, for armed alerts."""
        found: dict[str, dict[str, float | None]] = {service: {} for service in self.services}
        for armed in self.armed:
            found[armed.service.name][armed.alert.name] = armed.settings.threshold
        return found

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Second name -> the recorded series it repeats."""
        return {alias: self.catalogue.signals[signal].series for signal, alias in self.config.aliases.items()}

    @cached_property
    def signals(self) -> dict[str, list[str]]:
        """Signals that some service has, with those services."""
        found: dict[str, list[str]] = {}
        for signal in [*self.catalogue.signals, *self.pack.derived]:
            services = [service.name for service in self.config.services if self.has(service.name, signal)]
            if services:
                found[signal] = services
        return found


def plan(loaded: Loaded, catalogue: Catalogue, pack: Pack) -> Plan:
    """Work out what can be watched.

    Raises ConfigError for engines and alerts that do not exist, and for thresholds that can never or always fire.
    """
    config = loaded.config
    problems = [
        *_engine_problems(config, catalogue), *_collector_problems(config), *_alert_problems(config, pack),
        *_alias_problems(config, catalogue),
    ]  # fmt: skip
    if problems:
        raise loaded.error(*problems)
    bare = Plan(config, catalogue, pack, _sources(config, catalogue))
    armed, blind, problems = arm(bare)
    if problems:
        raise loaded.error(*problems)
    return replace(bare, armed=armed, blind=blind)


def _engine_problems(config: Config, catalogue: Catalogue) -> Iterator[Problem]:
    engines = sorted(name for name, source in catalogue.sources.items() if source.kind == "engine")
    for index, service in enumerate(config.services):
        name = service.engine.name
        if name not in engines:
            path: Path = ("services", index, "engine", "name")
            yield Problem("is no known engine", path, name, did_you_mean(name, engines))


def _collector_problems(config: Config) -> Iterator[Problem]:
    """dcgm-exporter or npu-exporter that nobody says where to find; those of another service may read its nodes."""
    shared = {owner for service in config.services if (found := service.accelerators) is not None
              and (found.targets or found.discovery) for owner in found.nodes.values()}  # fmt: skip
    for index, service in enumerate(config.services):
        found = service.accelerators
        if found is None or found.source == "sidecar" or found.targets or found.discovery:
            continue
        if service.name not in shared:
            yield Problem(f"{found.source} is scraped nowhere", ("services", index, "accelerators", "source"),
                          found.source, "add targets or discovery, or name its hosts in another service's nodes")


def _alias_problems(config: Config, catalogue: Catalogue) -> Iterator[Problem]:
    raw = {
        name.replace(":", "_"): source.title
        for source in catalogue.sources.values() for entry in source.entries for name in entry.metrics
    }  # fmt: skip
    for signal, alias in config.aliases.items():
        path: Path = ("aliases", signal)
        known = catalogue.signals.get(signal)
        if known is None:
            yield Problem("is no signal", path, fix=did_you_mean(signal, catalogue.signals))
        elif known.kind == "histogram":
            yield Problem("is a histogram, which has no single series", path, alias)
        elif alias.startswith("k3:"):
            yield Problem("k3: is the prefix of our own series", path, alias, "choose another name")
        elif alias.replace(":", "_") in raw:
            yield Problem(f"is a raw name of {raw[alias.replace(':', '_')]}: both would mix in one series", path, alias,
                          "choose another name")  # fmt: skip


def _alert_problems(config: Config, pack: Pack) -> Iterator[Problem]:
    places: list[tuple[Path, Mapping[str, AlertSettings]]] = [(("alerts",), config.alerts)]
    places += [(("services", i, "alerts"), service.alerts) for i, service in enumerate(config.services)]
    for path, settings in places:
        for name, setting in settings.items():
            alert = pack.alerts.get(name)
            if alert is None:
                yield Problem("is no alert", (*path, name), fix=did_you_mean(name, pack.alerts))
                continue
            for param in setting.params:
                if param not in alert.params:
                    fix = did_you_mean(param, alert.params) if alert.params else "it has none"
                    yield Problem("is no parameter of the alert", (*path, name, "params", param), fix=fix)
            if setting.threshold is not None and alert.threshold is None and alert.derive != "queue":
                yield Problem("the alert has no threshold", (*path, name, "threshold"), setting.threshold)
            if setting.codes is not None and not alert.codes:
                yield Problem("the alert has no codes", (*path, name, "codes"), setting.codes)
            window = setting.window
            if window is not None and alert.window is None:
                yield Problem("the alert has no window", (*path, name, "window"), str(window))
            elif window is not None and window.seconds < 4 * config.prometheus.slowest:
                scrape, evaluation = config.prometheus.scrape_interval, config.prometheus.evaluation_interval
                interval = f"scrape intervals of {scrape}: a lost scrape" if scrape.seconds >= evaluation.seconds \
                    else f"evaluation intervals of {evaluation}: a late evaluation"
                yield Problem(f"is shorter than 4 {interval} would empty it", (*path, name, "window"), str(window),
                              f"use at least {Duration.of(4 * config.prometheus.slowest)}")


def _candidates(service: Service, signal: str) -> list[str]:
    """Catalogue sources that may give a service's signal, best first; never two for one signal."""
    collect, accelerators = service.sidecar.collect, service.accelerators
    engine = [service.engine.name]
    if signal.startswith("accelerator"):
        if accelerators is None:
            return []
        return [accelerators.source] if accelerators.source != "sidecar" or {"gpu", "npu"} & set(collect) else []
    if signal.startswith("kv_cache"):
        return ["sidecar"] if service.kv_source == "sidecar" else engine
    if signal.startswith("expert"):
        return ["sidecar"] if "experts" in collect else engine
    if signal == "exporter_up":
        return ["prometheus"] if exporter_jobs(service) else []
    return [*engine, "prometheus", *(["sidecar"] if collect else [])]


def exporter_jobs(service: Service) -> list[str]:
    """The values of ``job`` under which the exporters beside a service's engines are scraped, that of devices first."""
    accelerators = service.accelerators
    own = [f"k3-{accelerators.source}"] if accelerators is not None and accelerators.source != "sidecar" else []
    return own + (["k3-sidecar"] if service.sidecar.collect else [])


def _sources(config: Config, catalogue: Catalogue) -> dict[str, Mapping[str, Entry | Gap]]:
    """Resolve every signal once for all services that look alike: a thousand replicas of one kind cost one."""
    raw = [name for name, signal in catalogue.signals.items() if not signal.derived_from]
    shared: dict[Any, Mapping[str, Entry | Gap]] = {}
    found = {}
    for service in config.services:
        known = {k: v for k, v in facts(service).items() if k not in ("model_name", "replicas_expected")}
        shape = (service.engine.name, service.engine.version, tuple(sorted(known.items())))
        if shape not in shared:
            shared[shape] = {signal: _source(service, signal, catalogue) for signal in raw}
        found[service.name] = shared[shape]
    return found


def _without_metrics(service: Service, signal: str, entry: Entry, enable: str) -> Entry | Gap:
    """vLLM leaves out its own metrics and answers scrapes still; where metrics are switched on there is no answer."""
    if entry.source in ("vllm", "vllm-ascend"):
        return Gap(entry.source, signal, entry.versions,
                   Text("--disable-log-stats leaves out all metrics of the engine",
                        "--disable-log-stats 会去掉引擎的全部指标"),
                   Text("start the engine without --disable-log-stats, and drop enable_metrics: false",
                        "启动引擎时去掉 --disable-log-stats，并删除 enable_metrics: false"))  # fmt: skip
    if entry.source == "prometheus" and signal == "engine_up" and enable:
        return Gap(entry.source, signal, entry.versions,
                   Text("an engine without metrics answers no scrape and looks down",
                        "引擎未开启指标，抓取必然失败，看似宕机"),
                   Text(f"add {enable}", f"加上 {enable}"))  # fmt: skip
    return entry


def _source(service: Service, signal: str, catalogue: Catalogue) -> Entry | Gap:
    known, gaps = facts(service), []
    version = Version.parse(service.engine.version) if service.engine.version else None
    for name in _candidates(service, signal):
        found = catalogue.entry(name, signal, version if name == service.engine.name else None, known)
        if isinstance(found, Entry) and not known["enable_metrics"] and name in (service.engine.name, "prometheus"):
            found = _without_metrics(service, signal, found, catalogue.sources[service.engine.name].enable)
        lacks = known["experts.readings"]
        if name == "sidecar" and signal.startswith(LOADS) and isinstance(found, Entry) and isinstance(lacks, Lack):
            found = Gap(name, signal, found.versions, lacks.reason, lacks.fix)
        if isinstance(found, Entry):
            return found
        gaps.append(found)
    return next((gap for gap in gaps if gap.fix is not None), gaps[0]) if gaps else _no_exporter(service, signal)


def _no_exporter(service: Service, signal: str) -> Gap:
    if service.accelerators is None:
        reason = Text("the configuration names no accelerators", "配置里没有写加速卡")
        if signal == "exporter_up":
            reason = Text("no exporter runs beside the engine", "引擎旁没有部署 exporter")
        ascend = service.engine.name in ASCEND_ENGINES
        kind, collector = ("ascend", "npu") if ascend else ("nvidia", "gpu")
        what = f"accelerators: {{kind: {kind}, per_node: …}}", f"sidecar: {{collect: [{collector}]}}"
        fix = Text("add {} and {}".format(*what), "加上 {} 和 {}".format(*what))
    else:
        kind = "gpu" if service.accelerators.kind == "nvidia" else "npu"
        reason = Text("no sidecar reads the devices", "没有 sidecar 采集加速卡")
        fix = Text(f"add {kind} to sidecar.collect", f"在 sidecar.collect 里加上 {kind}")
    return Gap("", signal, VersionRange.parse(""), reason, fix)
