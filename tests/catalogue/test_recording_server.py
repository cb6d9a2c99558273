"""A real Prometheus scrapes replayed captures in the spelling it asks for, and records the values in the files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from k3observe.catalogue import Catalogue
from k3observe.catalogue.expression import recording
from k3observe.drill import servers
from k3observe.drill.advance import Replay
from k3observe.drill.binaries import Release
from k3observe.drill.exposition import parse
from k3observe.drill.replay import serve
from tests.programs import program

from .conftest import Captured
from .recorded import BY, by_hand, entries

NAMES = ["vllm-0.8.5.prom", "vllm-0.33.0-dp4-skew.prom", "sglang-0.5.23-dpattn8x2-eplb.prom", "mindie-documented.prom"]


@pytest.mark.parametrize("release", ["3.5", "2.42"])
def test_a_prometheus_that_scrapes_an_engine_records_what_the_engine_said(
    release: Release, catalogue: Catalogue, captures: dict[str, Captured], tmp_path: Path
) -> None:
    binary = program("prometheus", release)
    groups, jobs = [], []
    with ExitStack() as targets:
        for number, name in enumerate(NAMES):
            target = targets.enter_context(serve(Replay(parse(captures[name].text, name))))
            url = target.url.removeprefix("http://").partition("/")[0]
            labels = {"stack": f"s{number}", "service": "svc", "role": "unified", "instance": "i:1"}
            jobs.append({"job_name": name, "static_configs": [{"targets": [url], "labels": labels}]})
            matchers = {"stack": f"s{number}"}
            rules = [{"record": record, "expr": expr} for signal, entry in entries(catalogue, captures[name])
                     for record, expr in recording(signal, entry, matchers, BY)]  # fmt: skip
            groups.append({"name": name, "interval": "1s", "rules": rules})
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                  "rule_files": ["rules.yml"], "scrape_configs": jobs}  # fmt: skip
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        with servers.prometheus(binary, tmp_path / "prometheus.yml", tmp_path / "data") as prometheus:
            for number, name in enumerate(NAMES):
                for record, values in by_hand(captures[name]).items():
                    if record.endswith("rate5m") or record == "k3:expert_balance:ratio":  # the replay stands still
                        continue
                    wanted = {tuple((k, f"s{number}" if k == "stack" else v) for k, v in labels): value
                              for labels, value in values.items()}  # fmt: skip
                    query = f'{record}{{stack="s{number}"}}'
                    servers.wait_until(lambda query=query: prometheus.query(query), query, 20)  # type: ignore[misc]
                    found = {
                        tuple(sorted((k, v) for k, v in row["metric"].items() if k != "__name__")):
                        float(row["value"][1]) for row in prometheus.query(query)
                    }  # fmt: skip
                    assert found == pytest.approx(wanted), (name, record)
            health = prometheus.get_json("/api/v1/rules")["data"]["groups"]
            errors = [(rule["name"], rule["lastError"]) for group in health for rule in group["rules"]
                      if rule["health"] == "err"]  # fmt: skip
            assert not errors
