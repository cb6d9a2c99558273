"""The families of all collectors as one exposition; a collector or a sample that fails never costs the others."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import Metric

from k3observe.exporters import families
from k3observe.exporters.collector import Collector
from k3observe.version import __version__


class Registry:
    """What an encoder of prometheus_client takes: ``collect`` yields each family once."""

    def __init__(self, collectors: Sequence[Collector], log: logging.Logger) -> None:
        self._collectors = tuple(collectors)
        self._log = log
        self._errors = dict.fromkeys((collector.name for collector in collectors), 0)
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Yield the families of all collectors, those of one name merged, and the exporter's own."""
        merged: dict[str, Metric] = {}
        for collector in self._collectors:
            for metric in self._families(collector):
                if metric.name in merged:
                    merged[metric.name].samples.extend(metric.samples)
                elif metric.samples:
                    merged[metric.name] = metric
        build = families.BUILD_INFO.new()
        build.add_metric((__version__, platform.python_version()), 1)
        errors = families.COLLECT_ERRORS.new()
        for name, count in self._errors.items():
            errors.add_metric((name,), count)
        yield from (*merged.values(), build, errors)

    def encode(self, encoder: Callable[..., bytes]) -> bytes:
        """Return the exposition; families that cannot be encoded are left out and logged.

        The usual case encodes once; only after a failure each family is tried by itself. Text that is no Unicode (a
        flag's bytes, say) is served as U+FFFD.
        """
        metrics = list(self.collect())
        try:
            try:
                return encoder(_Families(metrics))
            except UnicodeEncodeError:
                metrics = [_unicode(metric) for metric in metrics]
                return encoder(_Families(metrics))
        except Exception:
            good = []
            for metric in metrics:
                try:
                    encoder(_Families([metric]))
                    good.append(metric)
                except Exception as error:
                    self._log.error("left out %s: its samples cannot be encoded: %s", metric.name, error)
            return encoder(_Families(good))

    def _families(self, collector: Collector) -> Sequence[Metric]:
        try:
            return list(collector.collect())
        except Exception:
            with self._lock:
                self._errors[collector.name] += 1
            self._log.exception("collector %s failed: its metrics are missing in this scrape", collector.name)
            return ()


def _unicode(metric: Metric) -> Metric:
    """Return a family whose label values can be encoded."""
    copy = Metric(metric.name, metric.documentation, metric.type)
    copy.samples = [
        sample._replace(labels={
            name: value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str)
            and not value.isascii() else value for name, value in sample.labels.items()})
        for sample in metric.samples]
    return copy


class _Families:
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
