"""One HTML file that holds the data, the drawing and the chart library, and needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3observe.catalogue.model import Text
from k3observe.preview.evaluate import Result
from k3observe.preview.prometheus import Span

_HERE = Path(__file__).parent
_SCRIPTS = ("echarts.min.js", "units.js", "charts.js", "panels.js", "page.js")
_TEXTS = {
    "notice": Text("A preview, not Grafana: the dashboards' own queries, drawn by Apache ECharts.",
                   "这是预览，不是 Grafana：运行看板自身的查询，由 Apache ECharts 绘制。"),
    "from": Text("Data from", "数据来自"),
    "all": Text("all", "全部"),
    "light": Text("Light", "浅色"),
    "dark": Text("Dark", "深色"),
    "nodata": Text("No data", "无数据"),
    "last": Text("last", "最新"),
    "max": Text("max", "最大"),
}  # fmt: skip


def page(result: Result, span: Span, source: str, language: str) -> str:
    """The page. ``source`` says where the data come from."""
    data = {
        "boards": result.boards, "times": [round(time * 1000) for time in span.times], "language": language,
        "source": source, "texts": {name: text.get(language) for name, text in _TEXTS.items()},
    }  # fmt: skip
    scripts = "\n".join(f"<script>{(_HERE / name).read_text('utf-8')}</script>" for name in _SCRIPTS)
    style = (_HERE / "page.css").read_text("utf-8")
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        # nothing is fetched from anywhere, whatever a label holds
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
        "style-src 'unsafe-inline'; img-src data:\">\n"
        '<meta name="viewport" content="width=device-width">\n<title>k3observe preview</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n{scripts}\n</body>\n</html>\n'
    )


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
