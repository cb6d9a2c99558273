"""Goal 5: a cold `k3observe render` against jsonnet programs that emit as much.

The subject starts, reads its configuration, plans, renders rules, unit tests, dashboards, provisioning and runbooks,
and writes the files. The reference starts, evaluates a program in the style of a monitoring mixin that emits the same
files (panels, series and samples composed by functions, YAML by std.manifestYamlStream) and writes them; it neither
validates a configuration nor parses PromQL. Both are whole processes, in CPU seconds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from measure import interleaved, leave, process_cpu_seconds, report

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "bench" / "jsonnet"
GOALS = {"rjsonnet": 1.3, "gojsonnet": 0.3}
EVALUATE = {
    "rjsonnet": "import rjsonnet; text = rjsonnet.evaluate_file(source)",
    "gojsonnet": "import _gojsonnet; text = _gojsonnet.evaluate_file(source)",
}

LIBRARY = """
local config = { stack: 'stack="fleet"', rate: '$__rate_interval' };
local panel = {
  new(title, type, description='', gridPos={}, id=null, links=[], datasource=null, transformations=null, unit=null): {
    title: title, type: type, description: description, gridPos: gridPos, id: id, links: links,
    [if datasource != null then 'datasource']: datasource,
    [if transformations != null then 'transformations']: transformations,
    fieldConfig: { defaults: {}, overrides: [] }, options: {}, targets: [], _next:: 0,
    addDefault(key, value):: self { fieldConfig+: { defaults+: { [key]: value } } },
    addOption(key, value):: self { options+: { [key]: value } },
    addOverride(override):: self { fieldConfig+: { overrides+: [override] } },
    addTarget(target):: self {
      local next = super._next, _next: next + 1,
      targets+: [target { refId: std.char(std.codepoint('A') + next) }],
    },
  },
  target(expr, legend='', format='time_series', instant=false): {
    expr: expr % config, legendFormat: legend, format: format, instant: instant, range: !instant, editorMode: 'code',
    datasource: { type: 'prometheus', uid: '${datasource}' },
  },
};
local dashboard(rest) = rest {
  panels: [],
  addPanel(panel):: self { panels+: [panel] },
  addPanels(panels):: std.foldl(function(made, panel) made.addPanel(panel), panels, self),
};
local rule(expr, rest) = rest { expr: expr % config };
local pairs(labels) = [name + '="' + labels[name] + '"' for name in std.objectFields(labels)];
local braced(labels) = '{' + std.join(',', pairs(labels)) + '}';
local series(name, labels, values) = { series: name + braced(labels), values: values };
local sample(labels, value) = { labels: braced(labels), value: value };
"""


def configuration() -> str:
    """A stack with every engine: the most rules and panels."""
    sys.path.insert(0, str(ROOT))
    from k3observe.render.text import to_yaml
    from tests.dashboards.stacks import document

    return to_yaml(document("all"))


def program(bundle: Path) -> str:
    """A jsonnet program that emits the files of a bundle: YAML by std.manifestYamlStream, panels composed."""
    parts = [LIBRARY, "{"]
    for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
        name, text = json.dumps(str(path.relative_to(bundle)).replace("/", "-")), path.read_text("utf-8")
        if path.suffix == ".json":
            parts.append(f"{name}: {_dashboard(json.loads(text))},")
        elif path.suffix == ".yml":
            documents = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
            parts.append(f"{name}: std.manifestYamlStream([{', '.join(map(_document, documents))}]),")
        else:
            parts.append(f"{name}: {json.dumps(text)},")
    return "\n".join([*parts, "}"])


def _document(document: Any) -> str:
    """Rules and the series of their tests are made by functions, everything else stands as it is."""
    if isinstance(document, dict) and "tests" in document:
        rest = {key: value for key, value in document.items() if key != "tests"}
        return f"{json.dumps(rest)} + {{ tests: [{', '.join(map(_test, document['tests']))}] }}"
    if not (isinstance(document, dict) and isinstance(document.get("groups"), list)):
        return json.dumps(document)
    groups = [
        f"{{ name: {json.dumps(group['name'])}, interval: {json.dumps(group.get('interval', '15s'))}, rules: ["
        + ", ".join(f"rule({_template(rule['expr'])}, {json.dumps(rule)})" for rule in group["rules"]) + "] }"
        for group in document["groups"]
    ]  # fmt: skip
    return f"{{ groups: [{', '.join(groups)}] }}"


def _test(test: dict[str, Any]) -> str:
    """A promtool test: each series and each expected sample from its labels."""
    made = []
    for key, value in test.items():
        if key == "input_series":
            given = [f"series({', '.join(_series(item['series']))}, {json.dumps(item['values'])})" for item in value]
            made.append(f"{key}: [{', '.join(given)}]")
        elif key == "promql_expr_test":
            made.append(f"{key}: [{', '.join(map(_expected, value))}]")
        else:
            made.append(f"{key}: {json.dumps(value)}")
    return "{ " + ", ".join(made) + " }"


def _expected(check: dict[str, Any]) -> str:
    rest = {key: value for key, value in check.items() if key != "exp_samples"}
    samples = [f"sample({_series(item['labels'])[1]}, {json.dumps(item['value'])})" for item in check["exp_samples"]]
    return f"{json.dumps(rest)} + {{ exp_samples: [{', '.join(samples)}] }}"


def _series(text: str) -> tuple[str, str]:
    """The name and the labels of a series, as jsonnet."""
    name, _, labels = text.partition("{")
    return json.dumps(name), json.dumps(dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', labels)))


def _template(expr: str) -> str:
    """An expression with the selector of the stack as a parameter, as every expression of a mixin has."""
    text = expr.replace("%", "%%").replace('stack="fleet"', "%(stack)s").replace("$__rate_interval", "%(rate)s")
    return json.dumps(text)


def _dashboard(board: dict[str, Any]) -> str:
    panels = [panel for item in board["panels"] for panel in [item, *item.get("panels", ())]]
    rest = {key: value for key, value in board.items() if key != "panels"}
    return f"dashboard({json.dumps(rest)}).addPanels([{', '.join(map(_panel, panels))}])"


def _panel(panel: dict[str, Any]) -> str:
    """A panel as calls of the library: one for each of its properties, one for each target."""
    given = ("title", "type", "description", "gridPos", "id", "links", "datasource", "transformations")
    made = [f"panel.new({', '.join(f'{key}={json.dumps(panel[key])}' for key in given if key in panel)})"]
    field = panel.get("fieldConfig", {})
    made += [f".addDefault({json.dumps(key)}, {json.dumps(value)})" for key, value in field.get("defaults", {}).items()]
    made += [f".addOption({json.dumps(key)}, {json.dumps(value)})" for key, value in panel.get("options", {}).items()]
    made += [f".addOverride({json.dumps(override)})" for override in field.get("overrides", ())]
    for target in panel.get("targets", ()):
        rest = [target["legendFormat"], target["format"], target["instant"]]
        made.append(f".addTarget(panel.target({_template(target['expr'])}, {', '.join(map(json.dumps, rest))}))")
    return "".join(made)


def reference(name: str, source: Path, output: Path) -> list[str]:
    """The command that evaluates the program and writes each of its files."""
    if not (FOLDER / name).is_dir():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(FOLDER / name), name],
            check=True
        )
    code = (
        f"import sys, json; sys.path.insert(0, {str(FOLDER / name)!r}); source = {str(source)!r}; {EVALUATE[name]}\n"
        f"for name, value in json.loads(text).items():\n"
        f"    open({str(output)!r} + '/' + name, 'w').write(value if isinstance(value, str) else json.dumps(value))"
    )
    return [sys.executable, "-c", code]


def main() -> None:
    """Print the ratios; exit 1 when one misses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "k3observe.yaml").write_text(configuration(), encoding="utf-8")
        render = [str(Path(sys.executable).parent / "k3observe"), "render", "-f", str(folder / "k3observe.yaml"),
                  "-o", str(folder / "bundle")]  # fmt: skip
        subprocess.run(render, check=True, capture_output=True)
        emitted = folder / "emitted"
        emitted.mkdir()
        sources = {part: folder / f"{part}.jsonnet" for part in ("all", "grafana")}
        sources["all"].write_text(program(folder / "bundle"), encoding="utf-8")
        sources["grafana"].write_text(program(folder / "bundle" / "grafana" / "dashboards"), encoding="utf-8")
        fresh = ["sh", "-c", f'rm -rf {folder}/bundle && exec "$@" 2>/dev/null', "sh", *render]
        whole = process_cpu_seconds(fresh)
        others = process_cpu_seconds([*fresh, "--only", "prometheus,alertmanager,runbooks"])
        results = []
        for tool, at_most in GOALS.items():
            pair = interleaved(whole, process_cpu_seconds(reference(tool, sources["all"], emitted)))
            results.append(report("goal 5", "k3observe render", tool, pair, "ms", at_most=at_most))
            pair = interleaved(lambda: whole() - others(),
                               process_cpu_seconds(reference(tool, sources["grafana"], emitted)))  # fmt: skip
            results.append(report("goal 5", "what dashboards add to it", f"{tool} of the dashboards", pair, "ms",
                                  at_most=at_most))  # fmt: skip
        wrote = [sum(p.stat().st_size for p in place.rglob("*") if p.is_file()) for place in (folder / "bundle",
                                                                                              emitted)]
        print(f"     bytes written: k3observe {wrote[0]:,}, jsonnet {wrote[1]:,}")
        shutil.rmtree(emitted)
    leave(results)


if __name__ == "__main__":
    main()
