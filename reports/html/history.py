"""The page of a history: every change with its commits, and a figure of each series, those with changes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stridebench.reports.history.report import Finding
from stridebench.reports.html import text
from stridebench.reports.html.figures import GREY, PALETTE, RED, Chart
from stridebench.reports.html.text import environment, figure_of, for_plotly, plain_list

MOST = 60
"""Figures of a page; the table of Markdown has every series."""


def write(results: Sequence[Finding], title: str, folder: Path) -> Path:
    """Write the page of a history into a folder; returns index.html."""
    folder.mkdir(parents=True, exist_ok=True)
    text.write(folder / "assets")
    ordered = sorted(results, key=lambda finding: not finding.changes)
    body = (
        environment()
        .get_template("history.html")
        .render(
            title=title,
            root="",
            findings=ordered,
            charts=[_chart(index, finding) for index, finding in enumerate(ordered[:MOST])],
            figure=figure_of,
        )
    )
    (folder / "index.html").write_text(body, encoding="utf-8")
    return folder / "index.html"


def _chart(index: int, finding: Finding) -> Chart:
    one, nights = finding.series, finding.series.nights
    points = {
        "x": [night.created for night in nights],
        "y": plain_list(one.values, 5),
        "text": [for_plotly(night.commit or "commit not known") for night in nights],
        "mode": "lines+markers",
        "line": {"color": PALETTE[0], "width": 1.5},
        "hovertemplate": "%{y}<br>%{x}<br>%{text}<extra></extra>",
    }
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": RED, "width": 1.5, "dash": "dash"}}
    shapes = [{**line, "x0": change.first.created, "x1": change.first.created} for change in finding.changes]
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": for_plotly(one.metric)}},
        "shapes": shapes,
        "showlegend": False,
        "colorway": [GREY],
    }
    rows = [
        [night.created[:16], figure_of(value, 3), night.commit or "-"]
        for night, value in zip(nights, one.values, strict=True)
    ]
    caption = f"{one.setting}." + (" Dashed: the first night after a change." if shapes else "")
    spec = {"data": [points], "layout": layout}
    return Chart(
        f"series-{index}", f"{one.label}: {one.metric}", caption, spec, ("night", one.metric, "commit"), rows, 280
    )
