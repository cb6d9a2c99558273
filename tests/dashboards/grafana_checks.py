"""Validation that needs Grafana's own packages: its types (layer 1) and its registries (layer 2), run by node."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RELEASES = ("11", "12", "13")
Documents = Mapping[str, Mapping[str, Any]]


def type_errors(modules: Path, folder: Path, documents: Documents, release: str) -> dict[str, list[str]]:
    """Errors of the TypeScript compiler by document, for the types of one release of Grafana."""
    schema = modules / f"grafana-schema-{release}"
    types = "./dist/types/index.d.ts" if (schema / "dist/types/index.d.ts").exists() else "./dist/esm/index.d.ts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shapes.ts").write_text((HERE / "shapes.ts").read_text("utf-8"), "utf-8")
    for name, document in documents.items():
        text = json.dumps(document, ensure_ascii=False, indent=1)
        (folder / f"{name}.ts").write_text(
            f"import type {{ Checked }} from './shapes';\nexport const dashboard: Checked = {text};\n", "utf-8"
        )
    options = {
        "strict": True, "noEmit": True, "skipLibCheck": True, "module": "esnext", "moduleResolution": "bundler",
        "target": "es2022", "types": [], "baseUrl": ".",
        "paths": {"@grafana/schema": [str(schema / types)], "@raw/*": [str(schema / "dist/esm/raw/*")]},
    }  # fmt: skip
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}), "utf-8")
    done = subprocess.run(
        ["node", str(modules / "typescript/bin/tsc"), "-p", str(folder), "--pretty", "false"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found: dict[str, list[str]] = {name: [] for name in documents}
    for line in done.stdout.splitlines():
        match = re.match(r"(?:.*/)?([^/]+)\.ts\((\d+),\d+\): (.*)", line)
        if match and match[1] in found:
            found[match[1]].append(f"{match[2]}: {match[3]}")
        elif match or line.startswith("error"):
            raise AssertionError(f"the check itself is broken: {line}")
    return found


_REGISTRIES = """
Object.defineProperty(globalThis, 'navigator', {value: {userAgent: 'node', language: 'en', languages: ['en']}});
const data = require(process.argv[1] + '/@grafana/data');
const ids = registry => registry.list().map(item => item.id);
process.stdout.write(JSON.stringify({
  units: data.getValueFormats().flatMap(group => group.submenu.map(unit => unit.value)),
  reducers: ids(data.fieldReducers), colours: ids(data.fieldColorModeRegistry), matchers: ids(data.fieldMatchers),
  transformations: Object.values(data.DataTransformerID),
}));
"""


def registries(modules: Path) -> dict[str, set[str]]:
    """The ids that Grafana's registries know."""
    done = subprocess.run(
        ["node", "-e", _REGISTRIES, str(modules)], capture_output=True, text=True, timeout=60, check=True
    )
    return {name: set(ids) for name, ids in json.loads(done.stdout).items()}


def registry_errors(known: Mapping[str, set[str]], document: Mapping[str, Any]) -> list[str]:
    """Ids in a dashboard that Grafana does not know: it would fall back to something else without a word."""
    found: list[str] = []

    def want(kind: str, value: Any, where: str) -> None:
        prefixed = kind == "units" and re.match(r"(count|prefix|suffix|time|si|currency|bool):.+", str(value))
        if value not in known[kind] and not prefixed:
            found.append(f"{where}: {value!r} is not among Grafana's {kind}")

    for panel in panels(document):
        where = f"panel {panel['title']!r}"
        config = panel.get("fieldConfig", {})
        defaults = config.get("defaults", {})
        if "unit" in defaults:
            want("units", defaults["unit"], where)
        if "color" in defaults:
            want("colours", defaults["color"]["mode"], where)
        options = panel.get("options", {})
        for calc in [*options.get("reduceOptions", {}).get("calcs", []), *options.get("legend", {}).get("calcs", [])]:
            want("reducers", calc, where)
        for place in (options.get("yAxis", {}), options.get("cellValues", {})):
            if "unit" in place:
                want("units", place["unit"], where)
        for override in config.get("overrides", []):
            want("matchers", override["matcher"]["id"], where)
            for item in override["properties"]:
                if item["id"] == "unit":
                    want("units", item["value"], where)
                if item["id"] == "color":
                    want("colours", item["value"]["mode"], where)
        for transformation in panel.get("transformations", []):
            want("transformations", transformation["id"], where)
    return found


def panels(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels of a dashboard, those inside collapsed rows too."""
    found: list[dict[str, Any]] = []
    for panel in document["panels"]:
        found += [panel, *panel.get("panels", [])]
    return found
