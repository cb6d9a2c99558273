"""Labels and annotations that a user adds to alerts: Prometheus expands them as Go templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from k3observe.config.errors import Path, Problem
from k3observe.config.model import AlertSettings, Config
from k3observe.render.template import expand


def problems(config: Config) -> Iterator[Problem]:
    """Yield templates that Prometheus could not expand, or whose result the rendered tests could not foresee."""
    places: list[tuple[Path, Mapping[str, AlertSettings]]] = [(("alerts",), config.alerts)]
    places += [(("services", index, "alerts"), service.alerts) for index, service in enumerate(config.services)]
    for path, alerts in places:
        for name, settings in alerts.items():
            yield from _of_alert((*path, name), settings)


def _of_alert(path: Path, settings: AlertSettings) -> Iterator[Problem]:
    for label, value in settings.labels.items():
        if "{{" in value:
            yield Problem("a label by template makes a new alert of each value", (*path, "labels", label), value,
                          "write it into annotations")  # fmt: skip
    for annotation, text in settings.annotations.items():
        try:
            expand(text, {}, 1.0)
        except ValueError as error:
            forms = 'use {{ $labels.NAME }}, {{ $value | humanizePercentage }} or {{ printf "%.2f" $value }}'
            yield Problem(str(error), (*path, "annotations", annotation), text, forms)
