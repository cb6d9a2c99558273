"""Layer 4: every query of every dashboard on a real Prometheus that scrapes vLLM, SGLang and MindIE with sidecars."""

from __future__ import annotations

import time
from typing import Any

import pytest

from k3observe.dashboards.model import panel_id
from k3observe.drill.servers import Server
from k3observe.plan import Plan
from k3observe.preview.prometheus import Prometheus, Series, Span
from k3observe.preview.variables import choose, expand
from tests.dashboards.grafana_checks import panels
from tests.dashboards.stacks import rendered

pytestmark = pytest.mark.long

EMPTY = {
    "alerts-now": "Nothing fires",
    "acc-faults": "None",
    "acc-links": "All links are up",
    "kv-offload-usage": "Nothing is offloaded",
    "kv-offload-bytes": "Nothing is offloaded",
    "kv-transfer-failures": "No transfer has failed",
    "svc-acceptance": "Nothing is drafted",
    "svc-budget": "No hour of traffic",
}
"""Panels that the simulated stack leaves empty, and what they then say."""


def results(plan: Plan, server: Server) -> dict[tuple[str, int, str], list[Series]]:
    """Dashboard, panel and refId -> what came back."""
    prometheus, end = Prometheus(server.url), time.time()
    span = Span(end - 60, end, 2)
    found = {}
    for name, board in rendered(plan).items():
        values, _ = choose(board, prometheus, span, 2)
        for panel in panels(board):
            for target in panel.get("targets", ()):
                if " * group(k3:engine_up:bool" in target["expr"]:
                    continue  # the limit of services of which none may be chosen
                expr = expand(target["expr"], values)
                answer = prometheus.at(expr, end) if target["instant"] else prometheus.over(expr, span)
                found[name, panel["id"], target["refId"]] = answer
    return found


def test_every_query_returns_data_or_its_panel_says_why_not(told: tuple[Plan, Server]) -> None:
    plan, server = told
    answers = results(plan, server)
    allowed = {panel_id(key): text for key, text in EMPTY.items()}
    titles: dict[int, dict[str, Any]] = {p["id"]: p for b in rendered(plan).values() for p in panels(b)}
    silent = {key: titles[key[1]] for key, series in answers.items() if not series}
    unexpected = [f"{name}: {panel['title']}: {ref}" for (name, number, ref),
                  panel in silent.items() if number not in allowed]
    assert unexpected == []
    for (_, number, _), panel in silent.items():
        assert allowed[number] in panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
    assert len(answers) > 140


def test_every_variable_lists_something(told: tuple[Plan, Server]) -> None:
    plan, server = told
    end = time.time()
    for name, board in rendered(plan).items():
        _, variables = choose(board, Prometheus(server.url), Span(end - 60, end, 2), 2)
        assert [variable.name for variable in variables if not variable.values] == [], name
        assert variables, name


def test_the_pages_of_one_service_do_not_mix_buckets_of_two_engines(told: tuple[Plan, Server]) -> None:
    plan, server = told
    values, _ = choose(rendered(plan)["service"], Prometheus(server.url), Span(time.time() - 60, time.time(), 2), 2)
    assert values["service"] == "kimi-k3"


def test_the_experts_page_names_the_hot_rank_and_its_device(told: tuple[Plan, Server]) -> None:
    """Rank 3 of the first instance is hot from a quarter of the story on until six tenths."""
    plan, server = told
    prometheus, end = Prometheus(server.url), time.time()
    span = Span(end - 100, end, 2)
    board = rendered(plan)["experts"]
    values, _ = choose(board, prometheus, span, 2)
    by_id = {panel["id"]: panel for panel in panels(board)}
    loads = prometheus.over(expand(by_id[panel_id("ex-rank-heat")]["targets"][0]["expr"], values), span)
    peaks = {
        (series.labels["instance"], series.labels["rank"]): max(value for value in series.values if value is not None)
        for series in loads
    }
    hot = max(peaks, key=lambda place: peaks[place])
    assert hot[1] == "03"
    assert peaks[hot] > 2
    assert all(load < 1.2 for (instance, rank), load in peaks.items() if rank == "03" and instance != hot[0])
    table = by_id[panel_id("ex-ranks-table")]["targets"]
    for target in table:
        found = prometheus.at(expand(target["expr"], values), end)
        assert {series.labels["rank"] for series in found} == set("01234567"), target["expr"]
        assert all(series.labels["instance"] and series.labels["device"] for series in found)
    rebalances = prometheus.at(expand(by_id[panel_id("ex-rebalances")]["targets"][0]["expr"], values), end)
    assert rebalances[0].values[0] == pytest.approx(1, abs=0.3)


def test_the_experts_page_says_whether_the_last_rebalance_helped(told: tuple[Plan, Server]) -> None:
    """Rank 3 had 2.6 times the mean: a balance of 0.38 before, and nearly 1 after."""
    plan, server = told
    prometheus, end = Prometheus(server.url), time.time()
    board = rendered(plan)["experts"]
    values, _ = choose(board, prometheus, Span(end - 100, end, 2), 2)
    table = next(panel for panel in panels(board) if panel["id"] == panel_id("ex-rebalance-table"))
    ago, before, after, gained, took = (
        prometheus.at(expand(target["expr"], values), end) for target in table["targets"])
    assert [len(column) for column in (ago, before, after, gained, took)] == [1, 1, 1, 1, 1]
    assert before[0].values[0] == pytest.approx(1 / 2.6, abs=0.05)
    assert after[0].values[0] == pytest.approx(1, abs=0.1)
    assert gained[0].values[0] == pytest.approx(0.6, abs=0.1)
    assert took[0].values[0] == pytest.approx(2.1)
    assert 0 < (ago[0].values[0] or 0) < 100


def test_the_hottest_experts_are_those_of_the_hot_rank(told: tuple[Plan, Server]) -> None:
    plan, server = told
    prometheus, end = Prometheus(server.url), time.time()
    board = rendered(plan)["experts"]
    values, _ = choose(board, prometheus, Span(end - 100, end, 2), 2)
    table = next(panel for panel in panels(board) if panel["id"] == panel_id("ex-experts"))
    found = prometheus.at(expand(table["targets"][0]["expr"], values), end)
    assert len(found) == 10
    assert all(series.labels["layer"] and series.labels["expert"] for series in found)
    assert min(series.values[0] or 0 for series in found) > 3


def test_a_label_that_no_series_has_is_caught_only_here(told: tuple[Plan, Server]) -> None:
    plan, server = told
    board = rendered(plan)["experts"]
    values, _ = choose(board, Prometheus(server.url), Span(time.time() - 60, time.time(), 2), 2)
    panel = next(panel for panel in panels(board) if panel["id"] == panel_id("ex-balance"))
    right = expand(panel["targets"][0]["expr"], values)
    assert Prometheus(server.url).at(right, time.time())
    assert not Prometheus(server.url).at(right.replace('scope="rank"', 'scope="ranks"'), time.time())
