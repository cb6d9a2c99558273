"""All checks, by what they look at."""

from __future__ import annotations

from k3observe.config.source import Located
from k3observe.lint import (
    absence,
    alertmanager,
    bounds,
    counters,
    dashboards,
    histograms,
    queries,
    ranges,
    ratios,
    routing,
    scrape,
    selectors,
    templates,
)
from k3observe.lint.finding import Check
from k3observe.lint.panels import Dashboard
from k3observe.lint.rules import Rule
from k3observe.lint.scrape import Scraping

RULES: tuple[Check[Rule], ...] = (
    *ranges.CHECKS, *ratios.CHECKS, *histograms.CHECKS, *bounds.CHECKS, *counters.CHECKS, *absence.CHECKS,
    *selectors.CHECKS, *templates.CHECKS,
)  # fmt: skip
SCRAPING: tuple[Check[Scraping], ...] = scrape.CHECKS
ALERTMANAGER: tuple[Check[Located], ...] = alertmanager.CHECKS
DASHBOARDS: tuple[Check[Dashboard], ...] = (*dashboards.CHECKS, *queries.CHECKS)

# found while reading files, by Prometheus' own programs and in the configuration, not by a function above
READING = ("yaml/syntax", "rules/shape", "promql/syntax", "lint/unknown-check",
           "promtool/config", "promtool/rules", "amtool/config", routing.CHECK)  # fmt: skip

IDS = frozenset({*READING, *(check.id for checks in (RULES, SCRAPING, ALERTMANAGER, DASHBOARDS) for check in checks)})
