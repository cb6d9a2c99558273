"""A stack's view of a dashboard: its selectors, its thresholds, and why something is empty."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from k3observe.catalogue.model import Text
from k3observe.config.model import Config
from k3observe.config.values import Duration
from k3observe.dashboards.model import Board, Limit, Panel, Query, Row
from k3observe.plan import Plan, Settings
from k3observe.render import pods
from k3observe.render.prometheus import sidecar_targets
from k3observe.render.selector import one_of, quoted
from k3observe.render.template import number, shown

COLUMNS = 24
_SELECTOR = re.compile(r"\{([SIE])([,}])")
_LIMIT = re.compile(r"\{limit (\w+) ([\d.]+)\}")
_EVALUATIONS = re.compile(r"\{(\d+) evaluations\}")
_SERVICE = re.compile(r"\b(by|on|without) \(service\b")
_RECORDED = re.compile(r"\bk3:[a-z0-9_]+:[a-z0-9_]+")


def interval(config: Config) -> Duration:
    """The least step at which something new can be seen; ``$__rate_interval`` is four of these or more.

    Recorded counters move once an evaluation.
    """
    return max(config.prometheus.scrape_interval, config.prometheus.evaluation_interval, key=lambda d: d.seconds)


class Scope:
    """What a plan makes of a board's panels."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self.plan, self.board = plan, board
        self.language = plan.config.language
        chosen = f"stack={quoted(plan.config.stack)},service=~\"$service\""
        chosen += "".join(f',{label}=~"${label}"' for label in plan.config.identity_labels)
        instance = ',instance=~"$instance"' if board.instances else ""
        engine = ',engine=~"$engine"' if self.engine_series else ""
        self._selectors = {"S": chosen, "I": chosen + instance, "E": chosen + instance + engine}
        self._identity = "".join(f"{label}, " for label in plan.config.identity_labels)
        self._legend = "".join(f"{{{{{label}}}}} " for label in plan.config.identity_labels) + "{{service}}"

    def text(self, text: Text) -> str:
        """A text in the stack's language."""
        return text.get(self.language)

    def expr(self, expr: str) -> str:
        """An expression with its selectors filled in."""
        expr = _SELECTOR.sub(lambda match: "{" + self._selectors[match[1]] + match[2], expr)
        expr = _LIMIT.sub(self._limit, expr).replace("STACK", self.plan.config.stack)
        expr = _EVALUATIONS.sub(self._evaluations, expr)
        return _SERVICE.sub(rf"\1 ({self._identity}service", expr)

    def _limit(self, match: re.Match[str]) -> str:
        limits = self.limits((Limit(match[1]),))
        return number(limits[0][0]) if limits else match[2]

    def _evaluations(self, match: re.Match[str]) -> str:
        return str(Duration.of(int(match[1]) * interval(self.plan.config).seconds))

    def legend(self, panel: Panel, legend: str | Text) -> str:
        """What the series of a query are called: without the service where only one has them."""
        text = legend if isinstance(legend, str) else self.text(legend)
        text = text.replace("{{sidecar}} ", "" if self._one_sidecar else "{{instance}} ")
        if text.startswith("{{service}} ") and not self.plan.config.identity_labels:
            having = [service for service in self.plan.services if self._has_all(service, panel.needs)]
            if len(having) == 1:
                return text.removeprefix("{{service}} ")
        return text.replace("{{service}}", self._legend)

    @cached_property
    def _one_sidecar(self) -> bool:
        """Whether no service has several sidecars; where they are discovered, nobody knows."""
        services = self.plan.config.services
        return all(service.targets and len(sidecar_targets(service)) == 1 for service in services
                   if pods.sidecar_collects(service, self.plan.config))  # fmt: skip

    @cached_property
    def engine_series(self) -> str:
        """The series that tells which engines there are, if any does."""
        found = next((name for name in self.board.engines if name in self.plan.signals), None)
        return self.plan.catalogue.signals[found].series if found else ""

    def has(self, needs: Sequence[str]) -> bool:
        """Whether some service has all of these signals."""
        return not needs or any(self._has_all(service, needs) for service in self.plan.services)

    def _has_all(self, service: str, needs: Sequence[str]) -> bool:
        return all(self.plan.has(service, signal) for signal in needs)

    def queries(self, panel: Panel) -> list[Query]:
        """A panel's queries without those whose signals the stack lacks."""
        return [query for query in panel.queries if self.has(query.needs)]

    def rows(self) -> Iterator[tuple[Row, list[Panel]]]:
        """Rows with the panels that stay; a row without any is left out."""
        if self.board.subject and not self.has((self.board.subject,)):
            yield Row((self._why_empty(),)), [self._why_empty()]
            return
        for row in self.board.rows:
            panels = [panel for panel in row.panels if self.has(panel.needs)]
            if panels:
                yield row, panels

    def _why_empty(self) -> Panel:
        """The one panel of a dashboard whose subject no service has: why, and what would change that."""
        reasons = self._reasons((self.board.subject,))
        lines = [f"{', '.join(services[:20])}: {reason}" for reason, services in reasons.items()]
        return Panel(
            f"{self.board.name}-empty", "text", Text("Nothing to show yet", "暂无可展示的内容"),
            Text("No service of this stack has what this page shows.", "该集群没有任何服务提供本页所需的数据。"),
            content=lambda plan: "\n\n".join(lines))  # fmt: skip

    def height(self, row: Row) -> int:
        """The height of a row in units of the grid."""
        return row.height + (min(10, len(self.plan.services)) if row.lines else 0)

    def limits(self, limits: Sequence[Limit]) -> list[tuple[float, str]]:
        """Numbers and colours of limits, ascending.

        One that services have different numbers for gives none: the value of whichever is chosen would be judged by
        that of another.
        """
        alike = ((limit, self._values(limit)) for limit in limits)
        return sorted({next(iter(found)): limit.colour for limit, found in alike if len(found) == 1}.items())

    def drawn(self, panel: Panel) -> tuple[list[tuple[float, str]], list[tuple[Query, str]]]:
        """The limits of a graph: those that hold for every service, and lines for those of some services only.

        A line has data while one of its services is chosen.
        """
        common: dict[float, str] = {}
        lines: list[tuple[Query, str]] = []
        for limit in panel.limits:
            values = self._values(limit)
            if len(values) == 1:
                common[next(iter(values))] = limit.colour
                continue
            for value, services in sorted(values.items())[:6]:
                chosen = f"k3:engine_up:bool{{S,service=~{one_of(services)}}}"
                name = {"en": "limit", "zh-CN": "阈值"}[self.language]
                lines.append((Query(f"{number(value)} * group({chosen})", f"{name} {self._shown(limit, value)}"),
                              limit.colour))  # fmt: skip
        return sorted(common.items()), lines

    def _shown(self, limit: Limit, value: float) -> str:
        alert = self.plan.pack.alerts.get(limit.alert)
        return shown(value, alert.unit) if alert else number(value)

    def _values(self, limit: Limit) -> dict[float, list[str]]:
        """The numbers of a limit, and the services that have each."""
        if limit.value is not None:
            return {limit.value: list(self.plan.services)}
        found: dict[float, list[str]] = {}
        for service, known in self.plan.facts.items() if limit.fact else ():
            if known.get(f"{limit.fact}_given"):
                found.setdefault(float(known[limit.fact]), []).append(service)
        for settings, service in self._armed.get(limit.alert, ()):
            value = dict(settings.params).get(limit.param) if limit.param else settings.threshold
            if value is not None:
                found.setdefault(value, []).append(service)
        return found

    @cached_property
    def _armed(self) -> dict[str, list[tuple[Settings, str]]]:
        found: dict[str, list[tuple[Settings, str]]] = {}
        for armed in self.plan.armed:
            found.setdefault(armed.alert.name, []).append((armed.settings, armed.service.name))
        return found

    def idle(self, panel: Panel) -> str:
        """What an empty panel says: nothing happens, and which services cannot show anything, and why."""
        lines = [self.text(panel.idle)]
        for reason, services in self._reasons(panel.needs).items():
            lines.append(f"{', '.join(services[:5])}{' …' if len(services) > 5 else ''}: {reason}")
        return "\n".join(lines)

    def _reasons(self, needs: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for service in self.plan.services:
            for signal in needs:
                gap = self.plan.why_not(service, signal)
                if gap is not None:
                    fix = f" ({self.text(gap.fix)})" if gap.fix else ""
                    found.setdefault(self.text(gap.reason) + fix, []).append(service)
                    break
        return found

    def about(self, panel: Panel) -> str:
        """A panel's description: what it means and what to do, and the series behind it."""
        series = dict.fromkeys(name for query in self.queries(panel) for name in _RECORDED.findall(query.expr))
        lines = [self.text(panel.about)]
        if series:
            head = {"en": "Signals", "zh-CN": "指标"}[self.language]
            lines.append(f"{head}: " + ", ".join(f"`{name}`" for name in series))
        return "\n\n".join(lines)


def widths(panels: Sequence[Panel]) -> list[int]:
    """Columns of panels side by side: their shares of the whole, without a gap."""
    total, used, found = sum(panel.width for panel in panels), 0, []
    for panel in panels:
        end = round(COLUMNS * (used + panel.width) / total)
        found.append(end - round(COLUMNS * used / total))
        used += panel.width
    return found
