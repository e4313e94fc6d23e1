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

from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.measured import MeasuredRun
from stridebench.reports.pareto import is_quality

LENGTH = "prompt_tokens"
FORM = re.compile(r"[:,]weights=(int\d|nf4)")


@source("prompt_lengths")
def by_length(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the methods of each setting by prompt length, the median over prompts; there are two lengths at least."""
    frames: dict[str, list[pd.DataFrame]] = {}
    for group in run.groups:
        rows = group.rows[group.rows["role"] == "method"]
        samples = [run.store.cell(str(name)).samples for name in rows.index]
        lengths = [float(part.loc[~part["warmup"].astype(bool), LENGTH].median()) for part in samples]
        title = f"{group.backbone} {group.dtype}, T = {group.temperature:g}, {group.task.partition(' ')[0]}"
        frames.setdefault(title, []).append(rows.assign(**{LENGTH: lengths}))
    for title, parts in frames.items():
        joined = pd.concat(parts).sort_values(LENGTH, kind="stable")
        if joined[LENGTH].nunique() > 1:
            parts = [part.assign(line=str(label)) for label, part in joined.groupby("label", sort=False)]
            yield ChartData(title, pd.concat(parts))


@source("weight_formats")
def by_format(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the cells of a backbone in all its formats; backbones in one format have none."""
    frames: dict[str, list[pd.DataFrame]] = {}
    for group in run.groups:
        match = FORM.search(group.backbone)
        title = f"{FORM.sub('', group.backbone)}, T = {group.temperature:g}, {group.task}"
        frames.setdefault(title, []).append(group.rows.assign(line=match[1] if match else group.dtype))
    for title, parts in frames.items():
        joined = pd.concat(parts)
        if joined["line"].nunique() > 1:
            score = next((str(key) for key in joined if is_quality(str(key)) and joined[key].notna().any()), "")
            names = {f"{score}{end}": f"quality{end}" for end in ("", "_low", "_high", "_n")} if score else {}
            rows = joined.rename(columns=names).sort_values("label", kind="stable")
            yield ChartData(title, rows, fields={"score": score.partition(".")[2]})
