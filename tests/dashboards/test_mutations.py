"""Single mistakes in a dashboard, and which layer of the validation catches each: nothing passes all of them unseen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.dashboards.model import panel_id
from k3observe.lint.configured import surroundings
from k3observe.lint.panels import Dashboard
from k3observe.lint.registry import DASHBOARDS
from tests.dashboards import grafana_checks
from tests.dashboards.stacks import boards

pytestmark = pytest.mark.long
Json = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    name: str
    caught: str
    """Layers that catch it: t(ypes), r(egistries), c(heck); empty: none."""
    make: Callable[[Json], Any]
    board: str = "service"


def panel(board: Json, key: str) -> Json:
    return next(item for item in grafana_checks.panels(board) if item["id"] == panel_id(key))


def target(board: Json, key: str) -> Json:
    found: Json = panel(board, key)["targets"][0]
    return found


def defaults(board: Json, key: str) -> Json:
    found: Json = panel(board, key)["fieldConfig"]["defaults"]
    return found


def reworded(key: str, old: str, new: str) -> Callable[[Json], None]:
    """Replace a part of a panel's first expression, which must be there."""

    def change(board: Json) -> None:
        found = target(board, key)
        assert old in found["expr"], found["expr"]
        found["expr"] = found["expr"].replace(old, new)

    return change


LINES, TTFT, HEAT = "svc-outcomes", "svc-ttft-quantiles", "svc-ttft-heat"
ERRORS, QUEUE, TILE = "svc-error-share", "svc-queue", "svc-waiting"

MISTAKES = (
    Mistake("a unit that Grafana does not have", "r", lambda b: defaults(b, LINES).update(unit="tokens/s")),
    Mistake("a unit in the words of people", "r", lambda b: defaults(b, LINES).update(unit="req/s")),
    Mistake("an unknown key in a panel", "t", lambda b: panel(b, LINES).update(nullPointMode="null")),
    Mistake("an unknown key in options", "t", lambda b: panel(b, LINES)["options"].update(legends={})),
    Mistake("an unknown key in custom fields", "t", lambda b: defaults(b, LINES)["custom"].update(lineColour="red")),
    Mistake("a legacy key of the dashboard", "t", lambda b: b.update(style="dark")),
    Mistake("null where a number belongs", "t", lambda b: defaults(b, LINES).update(min=None)),
    Mistake("text where a number belongs", "t", lambda b: defaults(b, LINES).update(max="1")),
    Mistake("the first threshold as the text null", "t",
            lambda b: defaults(b, LINES)["thresholds"]["steps"][0].update(value="null")),
    Mistake("a stacking mode that does not exist", "t",
            lambda b: defaults(b, LINES)["custom"]["stacking"].update(mode="stacked")),
    Mistake("a legend mode that does not exist", "t", lambda b: panel(b,
                                                                      LINES)["options"]["legend"].update(displayMode="columns")),
    Mistake("calc where reduceOptions belong", "t", lambda b: panel(b, TILE)["options"].update(calc="mean")),
    Mistake("a reducer that does not exist", "r",
            lambda b: panel(b, TILE)["options"]["reduceOptions"].update(calcs=["lastNonNull"])),
    Mistake("a colour mode that does not exist", "tr", lambda b: defaults(b, LINES)["color"].update(mode="palette")),
    Mistake("a matcher that does not exist", "r",
            lambda b: panel(b, LINES)["fieldConfig"]["overrides"][0]["matcher"].update(id="byname")),
    Mistake("a transformation that does not exist", "tr",
            lambda b: panel(b, "services")["transformations"][1].update(id="organise"), "overview"),
    Mistake("a panel type of the past", "t", lambda b: panel(b, LINES).update(type="graph")),
    Mistake("value mappings of the past", "t",
            lambda b: defaults(b, "engine-state").update(mappings=[{"value": "1", "text": "up", "op": "="}]),
            "overview"),
    Mistake("text where a truth value belongs", "t", lambda b: target(b, LINES).update(instant="false")),
    Mistake("schemaVersion as a text", "t", lambda b: b.update(schemaVersion="41")),
    Mistake("a missing refId", "tc", lambda b: target(b, LINES).pop("refId")),
    Mistake("a refId twice", "c", lambda b: panel(b, LINES)["targets"][1].update(refId="A")),
    Mistake("a panel id twice", "c", lambda b: panel(b, LINES).update(id=panel_id(TTFT))),
    Mistake("a uid that is too long", "c", lambda b: b.update(uid="k3-" + "x" * 40)),
    Mistake("panels that overlap", "c", lambda b: panel(b, LINES)["gridPos"].update(w=12)),
    Mistake("a panel beyond the grid", "c", lambda b: panel(b, "svc-output-engine")["gridPos"].update(w=9)),
    Mistake("a panel without a place", "tc", lambda b: panel(b, LINES).pop("gridPos")),
    Mistake("a renamed metric", "c", reworded(LINES, "requests_finished", "requests_done")),
    Mistake("an unguarded ratio", "c", reworded(ERRORS, " > 0)", ")")),
    Mistake("le dropped before a quantile", "c", reworded(TTFT, "sum by (le)", "sum")),
    Mistake("le dropped in a heatmap", "c", reworded(HEAT, "sum by (le)", "sum")),
    Mistake("a heatmap of cumulative buckets", "c", lambda b: target(b, HEAT).update(format="time_series")),
    Mistake("a counter drawn as it is", "c", lambda b: target(b, LINES).update(expr="sum(k3:requests_finished:total)")),
    Mistake("a rate with a fixed window", "c", reworded(LINES, "$__rate_interval", "5m")),
    Mistake("a variable that does not exist", "c", reworded(LINES, "$service", "$servce")),
    Mistake("a data source of one Grafana", "c", lambda b: target(b,
                                                                  LINES)["datasource"].update(uid="P1809F7CD0C75ACF3")),
    Mistake("PromQL with a parenthesis too few", "c", reworded(LINES, "))", ")")),
    Mistake("a legend with a label that is gone", "c", lambda b: target(b, QUEUE).update(legendFormat="{{pod}}")),
    Mistake("a variable over every exporter", "c",
            lambda b: b["templating"]["list"][1]["query"].update(query="label_values(service)")),
    Mistake("the average of quantiles", "c",
            lambda b: target(b, TTFT).update(expr=f"avg({target(b, TTFT)['expr'].replace('(le)', '(service, le)')})")),
    Mistake("a colour that no browser knows", "", lambda b: defaults(b, LINES)["color"].update(fixedColor="grean")),
)  # fmt: skip


def mutated(mistake: Mistake) -> Json:
    board = copy.deepcopy(boards("vllm")[mistake.board])
    mistake.make(board)
    assert board != boards("vllm")[mistake.board], mistake.name
    return board


@pytest.fixture(scope="module")
def caught(node_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Mistake -> the layers that catch it."""
    documents = {f"m{index}": mutated(mistake) for index, mistake in enumerate(MISTAKES)}
    types = grafana_checks.type_errors(node_modules, tmp_path_factory.mktemp("types"), documents, "13")
    known = grafana_checks.registries(node_modules)
    around = surroundings(load_catalogue(), None)
    found = {}
    for index, mistake in enumerate(MISTAKES):
        board = documents[f"m{index}"]
        faults = [fault for check in DASHBOARDS for fault in check.find(Dashboard("d.json", board), around)]
        layers = {"t": types[f"m{index}"], "r": grafana_checks.registry_errors(known, board), "c": faults}
        found[mistake.name] = "".join(layer for layer, errors in layers.items() if errors)
    return found


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_caught_by(mistake: Mistake, caught: dict[str, str]) -> None:
    assert caught[mistake.name] == mistake.caught


def test_of_29_or_more_mistakes_at_most_one_is_not_caught(caught: dict[str, str]) -> None:
    assert len(MISTAKES) >= 29
    assert [name for name, layers in caught.items() if not layers] == ["a colour that no browser knows"]


def test_the_dashboards_themselves_are_blameless(node_modules: Path, tmp_path: Path) -> None:
    """Else a mutation would be caught for what was wrong before."""
    around, known = surroundings(load_catalogue(), None), grafana_checks.registries(node_modules)
    fine = {name: boards("vllm")[name] for name in {mistake.board for mistake in MISTAKES}}
    assert not any(grafana_checks.type_errors(node_modules, tmp_path, fine, "13").values())
    for board in fine.values():
        assert grafana_checks.registry_errors(known, board) == []
        assert [fault for check in DASHBOARDS for fault in check.find(Dashboard("d.json", board), around)] == []
