"""Reports of suites that answer questions of users: long prompts and quantised targets.

By prompt length: acceptance, tau and speed-up; a point is a cell, and its length is the median over its prompts. By the
format of the target's weights: whether speculation still pays. Speed-ups are over autoregressive decoding with the same
rounded weights. The costs of the rounding are shown too: KL a token and agreement with the weights as they are, and the
task's score of the autoregressive baseline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import (
    COLOURS,
    by_label,
    curves,
    error_bars,
    figure,
    legend,
    sheet,
    side_by_side,
)
from stridebench.reports.papers.measured import MeasuredRun
from stridebench.reports.pareto import is_quality
from stridebench.reports.text_table import Column, TextTable, measured_text, number

FIGURES_BY_LENGTH = {"acceptance": "acceptance rate", "tau": "tokens a step (tau)", "speedup": "speed-up"}
LENGTH = "prompt_tokens"


def by_length(run: MeasuredRun) -> Iterator[tuple[str, pd.DataFrame]]:
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
def length_table(run: MeasuredRun) -> list[TextTable]:
    """Return a length_table a setting: one row a method and prompt length."""
    columns = (
        Column("label", "method", rank=0),
        Column("length", "prompt tokens", rank=0),
        *(Column(key, title, 1, rank) for rank, (key, title) in enumerate(FIGURES_BY_LENGTH.items())),
    )
    tables = []
    for title, rows in by_length(run):
        cells = [
            [str(row["label"]), f"{row[LENGTH]:.0f}", *(measured_text(row, key) for key in FIGURES_BY_LENGTH)]
            for _, part in by_label(rows)
            for _, row in part.iterrows()
        ]
        tables.append(
            TextTable(f"by prompt length: {title}", columns, cells, ["the length is the median over prompts"])
        )
    return tables


@figure("prompt-lengths")
def draw_lengths(run: MeasuredRun) -> Iterator[Figure]:
    """Yield a figure a setting: three panels over the prompt length, on a logarithmic scale."""
    for title, rows in by_length(run):
        drawn, panels = side_by_side(len(FIGURES_BY_LENGTH), f"By prompt length: {title}")
        for axes, (key, name) in zip(panels, FIGURES_BY_LENGTH.items(), strict=True):
            curves(axes, by_label(rows), LENGTH, key)
            axes.set(xscale="log", xlabel="prompt tokens", ylabel=name)
            axes.set_xticks(
                sorted(rows[LENGTH].unique()), [f"{length:.0f}" for length in sorted(rows[LENGTH].unique())]
            )
            axes.minorticks_off()
        panels[-1].axhline(1, color="0.6", lw=0.8, zorder=0)
        legend(drawn, panels[0])
        yield drawn


FIGURES_BY_FORMAT = {"acceptance": "acceptance rate", "tau": "tokens a step (tau)", "speedup": "speed-up, same weights"}
FORM = re.compile(r"[:,]weights=(int\d|nf4)")
NOTES = (
    "speed-up: over autoregressive decoding with the same rounded weights; verdicts are relative to them too",
    "KL and agreement: of the rounded weights beside the weights as they are, on outputs of the baseline",
)


def by_format(run: MeasuredRun) -> Iterator[tuple[str, pd.DataFrame]]:
    """A title, and the rows of a backbone in all its formats; backbones in one format have none."""
    frames: dict[str, list[pd.DataFrame]] = {}
    for group in run.groups:
        match = FORM.search(group.backbone)
        title = f"{FORM.sub('', group.backbone)}, T = {group.temperature:g}, {group.task}"
        frames.setdefault(title, []).append(group.rows.assign(weights=match[1] if match else group.dtype))
    for title, parts in frames.items():
        joined = pd.concat(parts)
        if joined["weights"].nunique() > 1:
            yield title, joined


@sheet("weight_formats")
def format_table(run: MeasuredRun) -> list[TextTable]:
    """Return a format_table a backbone: one row a method and format."""
    tables = []
    for title, rows in by_format(run):
        score = next((str(key) for key in rows if is_quality(str(key)) and rows[key].notna().any()), "")
        columns = (
            Column("label", "method", rank=0),
            Column("weights", "weights", rank=0),
            Column("throughput", "tokens/s", 1, 1),
            *(Column(key, name, 2, rank + 2) for rank, (key, name) in enumerate(FIGURES_BY_FORMAT.items())),
            Column("kl", "KL, nats a token", 4, 5),
            Column("agreement", "agreement", 2, 5),
            *([Column("score", score.partition(".")[2], 2, 6)] if score else []),
        )
        cells = [
            [
                *(str(row["label"]), str(row["weights"]), measured_text(row, "throughput", digits=1)),
                *(measured_text(row, key) for key in FIGURES_BY_FORMAT),
                *(number(row["quantisation_kl"], 4), number(row["quantisation_agreement"], 3)),
                *([measured_text(row, score)] if score else []),
            ]
            for _, row in rows.sort_values("label", kind="stable").iterrows()
        ]
        tables.append(TextTable(f"by the target's weights: {title}", columns, cells, list(NOTES)))
    return tables


@figure("weight-formats")
def draw_formats(run: MeasuredRun) -> Iterator[Figure]:
    """Yield a figure a backbone: bars of each method by format."""
    for title, rows in by_format(run):
        methods = rows[rows["role"] == "method"]
        labels, forms = list(dict.fromkeys(methods["label"])), list(dict.fromkeys(rows["weights"]))
        drawn, panels = side_by_side(len(FIGURES_BY_FORMAT), f"By the target's weights: {title}")
        for axes, (key, name) in zip(panels, FIGURES_BY_FORMAT.items(), strict=True):
            for place, (form, colour) in enumerate(zip(forms, COLOURS, strict=False)):
                part = methods[methods["weights"] == form].drop_duplicates("label").set_index("label").reindex(labels)
                if key not in part:
                    continue
                at = [index + 0.8 * (place - (len(forms) - 1) / 2) / len(forms) for index in range(len(labels))]
                axes.bar(at, part[key].astype(float), 0.8 / len(forms), color=colour, label=form)
                axes.errorbar(at, part[key].astype(float), error_bars(part, key), fmt="none", ecolor="0.2", lw=0.8)
            axes.set_xticks(range(len(labels)), labels, rotation=20, ha="right", fontsize=7)
            axes.set_ylabel(name)
        panels[-1].axhline(1, color="0.6", lw=0.8, zorder=0)
        legend(drawn, panels[0])
        yield drawn
