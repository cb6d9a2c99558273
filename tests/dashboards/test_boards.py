"""What every dashboard promises, on stacks of each engine in both languages (layer 3 and the house rules)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3observe.catalogue.loader import load as load_catalogue
from k3observe.dashboards.boards import BOARDS, home
from k3observe.dashboards.model import panel_id
from k3observe.lint.configured import surroundings
from k3observe.lint.folder import Document, documents
from k3observe.lint.run import lint
from k3observe.render import grafana
from k3observe.render.alerts import rules
from k3observe.render.bundle import render
from k3observe.rules import load as load_rules
from tests.dashboards.grafana_checks import panels
from tests.dashboards.stacks import ENGINES, LANGUAGES, boards, document, planned, rendered

NAMES = ["overview", "service", "kv-cache", "experts", "accelerators", "monitoring"]


def drawn(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in panels(board) if panel["type"] != "row")


@pytest.fixture(params=[(engine, language) for engine in ENGINES for language in LANGUAGES], ids="-".join)
def fleet(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return boards(*request.param)


def test_a_stack_has_six_dashboards(fleet: dict[str, dict[str, Any]]) -> None:
    assert sorted(fleet) == sorted(NAMES)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_check_finds_nothing_in_them(engine: str, language: str, tmp_path: Path) -> None:
    made = planned(document(engine, language))
    for path, content in render(made, frozenset({"prometheus", "grafana"})).items():
        if "/dashboards/" in path or "/rules/" in path:
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    found = list(documents(tmp_path / "grafana")) + list(documents(tmp_path / "prometheus"))
    assert len([item for item in found if isinstance(item, Document) and item.kind == "dashboard"]) == len(NAMES)
    findings = lint(found, surroundings(made.catalogue, made.config))
    assert [str(item) for item in findings if "dashboards" in item.file] == []


def test_every_panel_has_title_description_and_says_why_it_is_empty(fleet: dict[str, dict[str, Any]]) -> None:
    for board in fleet.values():
        for panel in drawn(board):
            assert panel["title"], panel
            assert len(panel["description"]) > 8, panel["title"]
            if panel["type"] != "text":
                assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
                assert panel["targets"], panel["title"]


def test_each_is_below_200_kilobytes(fleet: dict[str, dict[str, Any]]) -> None:
    for name, board in fleet.items():
        assert len(json.dumps(board, ensure_ascii=False, separators=(",", ":")).encode()) < 200_000, name


def test_no_row_has_a_gap(fleet: dict[str, dict[str, Any]]) -> None:
    for board in fleet.values():
        widths: dict[tuple[int, int], int] = {}
        for row in [{"id": 0, "panels": board["panels"]}, *board["panels"]]:
            for panel in row.get("panels", ()):
                if panel["type"] != "row":
                    line = row["id"], panel["gridPos"]["y"]
                    widths[line] = widths.get(line, 0) + panel["gridPos"]["w"]
        assert set(widths.values()) == {24}


def test_ids_and_uids_do_not_depend_on_what_else_is_there() -> None:
    ids = {
        engine: {(board, panel["title"]): panel["id"] for board,
                 made in boards(engine).items() for panel in drawn(made)}
        for engine in ("vllm", "sglang")
    }
    shared = ids["vllm"].keys() & ids["sglang"].keys()
    assert len(shared) > 30
    assert all(ids["vllm"][panel] == ids["sglang"][panel] for panel in shared)
    every = [panel.key for board in BOARDS for row in board.rows for panel in row.panels]
    assert len({panel_id(key) for key in every}) == len(every)


def test_the_same_configuration_gives_the_same_bytes() -> None:
    made, again = planned(document("all")), planned(document("all"))
    assert dict(grafana.files(made)) == dict(grafana.files(again))


def test_a_notification_opens_the_panel_of_its_alert_with_the_right_variables() -> None:
    made = planned(document("all"))
    fleet = rendered(made)
    for group in made.pack.groups:
        for rule in rules(made, group):
            match = re.match(r"https://grafana\.example\.com/d/k3-fleet-([\w-]+)\?viewPanel=(\d+)(&.*)?$",
                             rule.annotations["dashboard_url"])  # fmt: skip
            assert match, rule.alert.name
            board = fleet[match[1]]
            assert int(match[2]) in {panel["id"] for panel in panels(board)}, rule.alert.name
            given = set(re.findall(r"var-(\w+)=", match[3] or ""))
            assert given <= {variable["name"] for variable in board["templating"]["list"]}, rule.alert.name


def test_every_alert_that_ships_has_a_panel_on_the_dashboard_it_names() -> None:
    for alert in load_rules().alerts.values():
        found = home(alert.name)
        assert found is not None, alert.name
        assert found[0].name == alert.dashboard, alert.name


def test_a_panel_links_the_runbooks_of_its_alerts() -> None:
    usage = next(panel for panel in drawn(boards("vllm")["kv-cache"]) if panel["id"] == panel_id("kv-usage"))
    assert "https://wiki.example.com/k3/KVCacheUsageHigh" in [link["url"] for link in usage["links"]]


def test_the_thresholds_of_the_configuration_are_drawn_as_dashed_lines() -> None:
    made = planned(document("vllm", alerts={"KVCacheUsageHigh": {"threshold": 0.87}}))
    usage = next(panel for panel in drawn(rendered(made)["kv-cache"]) if panel["id"] == panel_id("kv-usage"))
    defaults = usage["fieldConfig"]["defaults"]
    assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, 0.87]
    assert defaults["custom"]["thresholdsStyle"] == {"mode": "dashed"}


def test_services_with_other_thresholds_get_a_line_each() -> None:
    changed = document("all")
    changed["services"][0]["alerts"] = {"KVCacheUsageHigh": {"threshold": 0.87}}
    usage = next(p for p in drawn(rendered(planned(changed))["kv-cache"]) if p["id"] == panel_id("kv-usage"))
    lines = [target["expr"] for target in usage["targets"][1:]]
    assert len(lines) == 2
    assert '0.87 * group(k3:engine_up:bool{stack="fleet"' in lines[0]
    assert 'service=~"k3-vllm"' in lines[0]


def test_panels_without_a_signal_are_left_out() -> None:
    titles = {panel["title"] for panel in drawn(boards("generic")["experts"])}
    assert "Load of each rank" not in titles
    assert "Load of each rank" in {panel["title"] for panel in drawn(boards("vllm")["experts"])}


def test_an_empty_panel_says_which_service_cannot_fill_it_and_what_would() -> None:
    balance = next(p for p in drawn(boards("all")["experts"]) if p["id"] == panel_id("ex-rank-heat"))
    text = balance["fieldConfig"]["defaults"]["noValue"]
    assert "k3-mindie: MindIE has no metric for expert_rank_load" in text
    assert not re.search(r"\bk3-vllm[,:]", text)


def test_links_lead_to_the_other_dashboards_and_keep_time_and_services() -> None:
    fleet = boards("all")
    uids = {board["uid"] for board in fleet.values()}
    for board in fleet.values():
        linked = {re.match(r"/d/([\w-]+)\?", link["url"])[1] for link in board["links"]}  # type: ignore[index]
        assert linked == uids - {board["uid"]}
        assert all(link["keepTime"] and "${service:queryparam}" in link["url"] for link in board["links"])
        assert not any("instance" in link["url"] for link in board["links"]), "instances of another page are others"


def test_every_query_asks_the_chosen_data_source_at_the_step_of_the_rules(fleet: dict[str, dict[str, Any]]) -> None:
    """``$__rate_interval`` is right even where the data source does not know how often it is written to."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    for board in fleet.values():
        for panel in drawn(board):
            assert panel.get("datasource", source) == source, panel["title"]
            for target in panel.get("targets", ()):
                assert (target["datasource"], target["interval"]) == (source, "15s"), panel["title"]
        for annotation in board["annotations"]["list"]:
            assert (annotation["datasource"], annotation["target"]["interval"]) == (source, "15s")
        for variable in board["templating"]["list"]:
            assert variable["type"] == "datasource" or variable["datasource"] == source


def test_variables_follow_the_time_and_are_matched_as_what_they_become(fleet: dict[str, dict[str, Any]]) -> None:
    """All is a regular expression, and so are several values: ``=`` would match none of them."""
    for board in fleet.values():
        for variable in board["templating"]["list"][1:]:
            assert variable["refresh"] == 2, "on time range change"
            assert variable["multi"] == variable["includeAll"]
        text = json.dumps(board).replace('\\"', '"')
        for variable in board["templating"]["list"][1:]:
            matched = set(re.findall(rf'(\W+)"\${variable["name"]}\b', text))
            assert matched <= {"=~"}, variable["name"]


def test_the_experts_page_takes_only_services_that_have_experts() -> None:
    variable = next(item for item in boards("all")["experts"]["templating"]["list"] if item["name"] == "service")
    assert "allValue" not in variable, "all of them is what is listed: .+ would add every other service"
    assert "k3:expert_balance:ratio" in variable["definition"]


@pytest.mark.parametrize("stack", ["k3", "a" * 63, "b.c" * 21])
def test_uids_fit_grafana_and_differ(stack: str) -> None:
    files = grafana.files(planned(document("vllm", stack=stack)))
    uids = {json.loads(content)["uid"] for path, content in files if path.endswith(".json")}
    assert len(uids) == len(NAMES)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", uid) for uid in uids)


def test_only_rows_hold_panels_and_only_collapsed_ones(fleet: dict[str, dict[str, Any]]) -> None:
    for board in fleet.values():
        for panel in board["panels"]:
            assert panel["type"] == "row" or "panels" not in panel
            if panel["type"] == "row":
                assert bool(panel["panels"]) == panel["collapsed"], panel["title"]
                assert all(inner["gridPos"]["y"] > panel["gridPos"]["y"] for inner in panel["panels"])


def test_ratios_are_drawn_from_zero(fleet: dict[str, dict[str, Any]]) -> None:
    """A budget may be overdrawn, and a rebalance may make things worse."""
    signed = {panel_id("svc-budget")}
    for board in fleet.values():
        for panel in drawn(board):
            defaults = panel.get("fieldConfig", {}).get("defaults", {})
            if panel["type"] == "timeseries" and defaults["unit"] == "percentunit" and panel["id"] not in signed:
                assert defaults["min"] == 0, panel["title"]


def test_identity_labels_are_variables_and_stay_in_every_aggregation() -> None:
    for board in boards("all").values():
        assert "cluster" in [variable["name"] for variable in board["templating"]["list"]]
        for panel in drawn(board):
            for target in panel.get("targets", ()):
                assert not re.search(r"\b(by|on) \(service\b", target["expr"]), target["expr"]


def test_chinese_dashboards_have_chinese_titles_and_descriptions() -> None:
    plain = {"Watchdog", "SLO"}
    for board in boards("all", "zh-CN").values():
        for panel in panels(board):
            assert re.search(r"[\u4e00-\u9fff]", panel["title"]) or panel["title"] in plain, panel["title"]
            if panel["type"] != "row":
                assert re.search(r"[\u4e00-\u9fff]", panel["description"]), panel["title"]
    for board in boards("all", "en").values():
        assert not re.search(r"[\u4e00-\u9fff]", json.dumps(board, ensure_ascii=False))


def test_a_stack_without_grafana_has_no_dashboards() -> None:
    assert dict(grafana.files(planned(document("vllm", outputs={"grafana": False})))) == {}


def test_grafanalib_is_loaded_only_to_render() -> None:
    code = "import sys, k3observe.dashboards.boards, k3observe.render.bundle; print('grafanalib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_provisioning_names_the_data_source_that_the_dashboards_begin_with() -> None:
    files = dict(grafana.files(planned(document("vllm"))))
    source = files["grafana/provisioning/datasources/k3observe-prometheus.yml"].decode()
    uid = re.search(r"uid: (\S+)", source)
    assert uid
    variable = boards("vllm")["overview"]["templating"]["list"][0]
    assert variable["current"]["value"] == uid[1]
    assert "timeInterval: 15s" in source, "so that $__rate_interval is four evaluations"


def test_signals_of_the_catalogue_that_no_panel_shows_are_known() -> None:
    """A new signal is either shown, or it is listed here with the reason."""
    every = [panel for board in BOARDS for row in board.rows for panel in row.panels]
    shown = "".join(query.expr for panel in every for query in panel.queries)
    hidden = {
        "engine_sleeping",  # a sleeping engine answers: its traffic is what changes
        "expert_load_variance_lower_bound", "expert_ranks_expected",  # said by explain and doctor
        "accelerator_memory_reserved", "accelerator_memory_total", "accelerator_memory_free",  # parts of the usage
        "accelerator_last_xid", "accelerator_row_remap_failure", "accelerator_read_ok", "exporter_up",
    }  # fmt: skip
    signals = load_catalogue().signals.items()
    missing = {name for name, signal in signals if not signal.derived_from and signal.series not in shown}
    assert missing - hidden == set()
