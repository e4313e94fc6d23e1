"""Whether speculation still pays on a quantised target: each method by the format of the target's weights.

Speed-ups are over autoregressive decoding with the same rounded weights. The costs of the rounding are shown too:
KL a token and agreement with the weights as they are, and the task's score of the autoregressive baseline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from stridebench.reports.papers.drawing import COLOURS, error_bars, figure, legend, sheet, side_by_side
from stridebench.reports.papers.measured import MeasuredRun
from stridebench.reports.pareto import is_quality
from stridebench.reports.text_table import Column, TextTable, measured_text, number

PANELS = {"acceptance": "acceptance rate", "tau": "tokens a step (tau)", "speedup": "speed-up, same weights"}
FORM = re.compile(r"[:,]weights=(int\d|nf4)")
NOTES = (
    "speed-up: over autoregressive decoding with the same rounded weights; verdicts are relative to them too",
    "KL and agreement: of the rounded weights beside the weights as they are, on outputs of the baseline",
)


def settings(run: MeasuredRun) -> Iterator[tuple[str, pd.DataFrame]]:
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
def table(run: MeasuredRun) -> list[TextTable]:
    """Return a table a backbone: one row a method and format."""
    tables = []
    for title, rows in settings(run):
        score = next((str(key) for key in rows if is_quality(str(key)) and rows[key].notna().any()), "")
        columns = (
            Column("label", "method", rank=0),
            Column("weights", "weights", rank=0),
            Column("throughput", "tokens/s", 1, 1),
            *(Column(key, name, 2, rank + 2) for rank, (key, name) in enumerate(PANELS.items())),
            Column("kl", "KL, nats a token", 4, 5),
            Column("agreement", "agreement", 2, 5),
            *([Column("score", score.partition(".")[2], 2, 6)] if score else []),
        )
        cells = [
            [
                *(str(row["label"]), str(row["weights"]), measured_text(row, "throughput", digits=1)),
                *(measured_text(row, key) for key in PANELS),
                *(number(row["quantisation_kl"], 4), number(row["quantisation_agreement"], 3)),
                *([measured_text(row, score)] if score else []),
            ]
            for _, row in rows.sort_values("label", kind="stable").iterrows()
        ]
        tables.append(TextTable(f"by the target's weights: {title}", columns, cells, list(NOTES)))
    return tables


@figure("weight-formats")
def draw(run: MeasuredRun) -> Iterator[Figure]:
    """Yield a figure a backbone: bars of each method by format."""
    for title, rows in settings(run):
        methods = rows[rows["role"] == "method"]
        labels, forms = list(dict.fromkeys(methods["label"])), list(dict.fromkeys(rows["weights"]))
        drawn, panels = side_by_side(len(PANELS), f"By the target's weights: {title}")
        for axes, (key, name) in zip(panels, PANELS.items(), strict=True):
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
