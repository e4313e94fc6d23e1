"""Acceptance, tau and speed-up by prompt length: what speculation keeps on a long prompt.

A point is a cell; its length is the median over its prompts. Cells of one method, backbone, type and temperature make a
curve.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import by_label, curves, figure, legend, sheet, side_by_side
from stridebench.reports.papers.measured import MeasuredRun
from stridebench.reports.text_table import Column, TextTable, measured_text

FIGURES = {"acceptance": "acceptance rate", "tau": "tokens a step (tau)", "speedup": "speed-up"}
LENGTH = "prompt_tokens"


def lines(run: MeasuredRun) -> Iterator[tuple[str, pd.DataFrame]]:
    """A title, and the rows of its methods with their prompt lengths, ascending; settings of one length have none."""
    frames: dict[str, list[pd.DataFrame]] = {}
    for group in run.groups:
        rows = group.rows[group.rows["role"] == "method"]
        lengths = [_length(run, str(name)) for name in rows.index]
        title = f"{group.backbone} {group.dtype}, T = {group.temperature:g}, {group.task.partition(' ')[0]}"
        frames.setdefault(title, []).append(rows.assign(**{LENGTH: lengths}))
    for title, parts in frames.items():
        joined = pd.concat(parts)
        if joined[LENGTH].nunique() > 1:
            yield title, joined.sort_values(LENGTH, kind="stable")


def _length(run: MeasuredRun, cell: str) -> float:
    """The median over the prompts of a cell. A warm-up reads less of its prompt."""
    samples = run.store.cell(cell).samples
    return float(samples.loc[~samples["warmup"].astype(bool), LENGTH].median())


@sheet("prompt_lengths")
def table(run: MeasuredRun) -> list[TextTable]:
    """Return a table a setting: one row a method and prompt length."""
    columns = (
        Column("label", "method", rank=0),
        Column("length", "prompt tokens", rank=0),
        *(Column(key, title, 1, rank) for rank, (key, title) in enumerate(FIGURES.items())),
    )
    tables = []
    for title, rows in lines(run):
        cells = [
            [str(row["label"]), f"{row[LENGTH]:.0f}", *(measured_text(row, key) for key in FIGURES)]
            for _, part in by_label(rows)
            for _, row in part.iterrows()
        ]
        tables.append(
            TextTable(f"by prompt length: {title}", columns, cells, ["the length is the median over prompts"])
        )
    return tables


@figure("prompt-lengths")
def draw(run: MeasuredRun) -> Iterator[Figure]:
    """Yield a figure a setting: three panels over the prompt length, on a logarithmic scale."""
    for title, rows in lines(run):
        drawn, panels = side_by_side(len(FIGURES), f"By prompt length: {title}")
        for axes, (key, name) in zip(panels, FIGURES.items(), strict=True):
            curves(axes, by_label(rows), LENGTH, key)
            axes.set(xscale="log", xlabel="prompt tokens", ylabel=name)
            axes.set_xticks(
                sorted(rows[LENGTH].unique()), [f"{length:.0f}" for length in sorted(rows[LENGTH].unique())]
            )
            axes.minorticks_off()
        panels[-1].axhline(1, color="0.6", lw=0.8, zorder=0)
        legend(drawn, panels[0])
        yield drawn
