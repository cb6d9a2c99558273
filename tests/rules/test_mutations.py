"""The rendered tests notice nearly every fault that is planted in the rendered rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from k3observe.render import render
from tests.programs import program
from tests.rules.mutants import Mutant, mutants
from tests.rules.stacks import planned, stack

pytestmark = pytest.mark.mutations
SURVIVORS = Path(__file__).with_name("survivors.txt")


class Planted(NamedTuple):
    """A mutant in a rule of a file."""

    file: str
    index: int
    rule: str
    mutant: Mutant

    @property
    def name(self) -> str:
        return f"{self.rule}: {self.mutant.what}"


def test_95_percent_of_planted_faults_are_noticed_and_the_others_are_explained(tmp_path: Path) -> None:
    promtool = program("promtool")
    bundle = tmp_path / "bundle"
    for path, content in render(planned(stack()), frozenset({"prometheus"})).items():
        (bundle / path).parent.mkdir(parents=True, exist_ok=True)
        (bundle / path).write_bytes(content)
    planted = [item for file in sorted((bundle / "prometheus" / "rules").glob("*.yml")) for item in _planted(file)]
    readers = _readers(bundle)
    workers = os.cpu_count() or 1
    for number in range(workers):
        shutil.copytree(bundle, tmp_path / str(number))

    def survivors(number: int) -> list[str]:
        folder = tmp_path / str(number)
        return [item.name for item in planted[number::workers] if not _noticed(promtool, folder, item, readers)]

    with ThreadPoolExecutor(workers) as pool:
        alive = sorted(name for found in pool.map(survivors, range(workers)) for name in found)
    (tmp_path / "survivors.txt").write_text("\n".join(alive) + "\n")
    explained = {line.split(" ## ")[0] for line in SURVIVORS.read_text().splitlines() if not line.startswith("#")}
    new, gone = sorted(set(alive) - explained), sorted(explained - set(alive))
    assert not new, f"{len(new)} of {len(planted)} are not explained: " + "; ".join(new[:40])
    assert not gone, f"noticed by now, take them off the list: {gone}"
    assert len(alive) <= 0.05 * len(planted), f"{len(alive)} of {len(planted)} survive"


def _planted(file: Path) -> list[Planted]:
    """Mutants of the rules of a file; aliases repeat a series and are left out."""
    rules = yaml.safe_load(file.read_text())["groups"][0]["rules"]
    return [
        Planted(file.name, index, rule.get("alert") or rule["record"], mutant)
        for index, rule in enumerate(rules) for mutant in mutants(rule["expr"])
    ]  # fmt: skip


def _readers(bundle: Path) -> dict[str, list[Path]]:
    """The tests that load a file of rules: those of its own signals or alerts first, since they are quick and near."""
    found: dict[str, list[Path]] = {}
    for test in sorted((bundle / "prometheus" / "tests").glob("*.yml")):
        for path in yaml.safe_load(test.read_text())["rule_files"]:
            if path.startswith("../rules/"):
                found.setdefault(Path(path).name, []).append(Path(test.name))
    return {name: sorted(tests, key=lambda test: "-signals-" not in test.name) for name, tests in found.items()}


def _noticed(promtool: Path, folder: Path, item: Planted, readers: dict[str, list[Path]]) -> bool:
    rules = folder / "prometheus" / "rules" / item.file
    intact = rules.read_bytes()
    document: dict[str, Any] = yaml.safe_load(intact)
    document["groups"][0]["rules"][item.index]["expr"] = item.mutant.expr
    rules.write_text(yaml.safe_dump(document))
    near = [test for test in readers.get(item.file, []) if item.rule in test.name or "another" in test.name]
    try:
        tests = near if "-alerts-" in item.file else readers.get(item.file, [])
        for test in tests:
            done = subprocess.run(
                [str(promtool), "test", "rules", str(test)], cwd=folder / "prometheus" / "tests",
                capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                return True
        return False
    finally:
        rules.write_bytes(intact)
