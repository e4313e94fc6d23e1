"""Reports of suites that answer questions of users: long prompts and quantised targets.

By prompt length: acceptance, tau and speed-up; a point is a cell, and its length is the median over its prompts. By the
format of the target's weights: whether speculation still pays. Speed-ups are over autoregressive decoding with the same
rounded weights. The costs of the rounding are shown too: KL a token and agreement with the weights as they are, and the
task's score of the autoregressive baseline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stridebench.harness.record import stats
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import sheet
from stridebench.reports.papers.measured import CellGroup, MeasuredRun
from stridebench.reports.quality import is_quality
from stridebench.reports.text_table import Column, TextTable, estimate_text, measured_text, number

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


# Masked diffusion by number of steps: what fewer passes cost in quality, compared with the autoregressive twin.
# Generative perplexity and distinct-n are shown next to the task's score. Only both together distinguish a decoder
# that writes likely texts from one that repeats a text.


SCORES = ("score.solved", "score.pass@1")
"""Scores that a curve may show; the first that both models have is used."""
PERPLEXITY = "set.generative_perplexity"
DISTINCT = "set.distinct_"
NOTES = (
    "masked model and twin: the same data, tokens and size; the twin's rows come last, autoregressive decoding first",
    "passes: of the target, an output, the twin's prefill left out; speed-up: median over (prompt, seed) pairs of the "
    "twin's autoregressive time of a whole output, prefill and all, over this cell's",
    "canvas / passes: positions that are filled a pass; completion / steps: tokens up to the end of text a denoising "
    "step, as papers count it; runs before its length was stored have none",
    "less the twin's: difference of the means, paired by prompt and seed",
    "perplexity: exp of nats a token under the judge that the task names, lower where texts are likelier, at any "
    "temperature; distinct-n: different n-grams over all n-grams of the cell, to be compared at one n of outputs",
)


@dataclass(frozen=True)
class TwinPair:
    """Cells of a masked model and of its autoregressive twin, at one temperature and task.

    Args:
        score: key of the quality that both have.
    """

    masked: CellGroup
    twin: CellGroup
    score: str

    @property
    def reference(self) -> pd.Series[Any]:
        """The twin's autoregressive decoding."""
        return self.twin.rows[self.twin.rows["role"] == "baseline"].iloc[0]

    @property
    def name(self) -> str:
        """Name of the score."""
        return self.score.removeprefix("score.")


def pairs(groups: Sequence[CellGroup]) -> Iterator[TwinPair]:
    """Pair every group whose baseline is masked diffusion with the autoregressive one of the same setting."""
    masked = [group for group in groups if _baseline(group) == "masked_diffusion"]
    causal = [group for group in groups if _baseline(group) == "autoregressive"]
    for group in masked:
        for twin in causal:
            same = (group.task, group.temperature, group.dtype) == (twin.task, twin.temperature, twin.dtype)
            scores = [key for key in SCORES if _measured(group, key) and _measured(twin, key)]
            if same and scores:
                yield TwinPair(group, twin, scores[0])


@sheet("step_counts")
def step_table(run: MeasuredRun) -> list[TextTable]:
    """Return a table for each pair: one row an order and number of steps, then the rows of the twin."""
    return [_sheet(run.store, pair) for pair in pairs(run.groups)]


def _sheet(store: Store, pair: TwinPair) -> TextTable:
    distinct = _distinct(pair)
    columns = (
        Column("label", "cell", rank=0),
        Column("passes", "passes", 1, 2),
        Column("canvas", "canvas / passes", 3, 7),
        Column("completion", "completion / steps", 3, 7),
        Column("speedup", "speed-up over the twin", 2, 3),
        Column("score", pair.name, 3, 1),
        Column("less", f"{pair.name} less the twin's", 3, 4),
        Column("perplexity", "perplexity", 3, 5),
        *(Column(key, key.removeprefix("set.").replace("_", "-"), 3, 6) for key in distinct),
    )
    base = FinishedCell.of(store.cell(str(pair.reference.name)))
    rows = []
    for group, mark in ((pair.masked, ""), (pair.twin, "twin: ")):
        for name, row in group.rows.iterrows():
            finished = FinishedCell.of(store.cell(str(name)))
            gap = stats.difference(_scores(base, pair.name), _scores(finished, pair.name), "value", "one")
            is_reference = name == pair.reference.name
            rows.append(
                [
                    f"{mark}{row['label']}",
                    measured_text(row, "passes", digits=1),
                    measured_text(row, "canvas_per_pass"),
                    measured_text(row, "completion_per_step"),
                    "1" if is_reference else estimate_text(stats.median_ratio(_token_s(base), _token_s(finished))),
                    measured_text(row, pair.score, digits=3),
                    "-" if is_reference else estimate_text(gap, 3),
                    measured_text(row, PERPLEXITY, digits=3),
                    *(number(row.get(key), 3) for key in distinct),
                ]
            )
    return TextTable(
        f"Speed and quality: {pair.masked.title}, against {pair.twin.backbone}", columns, rows, list(NOTES)
    )


@source("step_counts")
def step_counts(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield each masked model by order and number of steps, next to its first twin."""
    for pair in {id(pair.masked): pair for pair in pairs(run.groups)}.values():
        rows = pair.masked.rows[pair.masked.rows["role"] == "method"]
        base = _token_s(FinishedCell.of(run.store.cell(str(pair.reference.name))))
        times = [_token_s(FinishedCell.of(run.store.cell(str(name)))) for name in rows.index]
        ratios = [stats.median_ratio(base, time) for time in times]
        rows = rows.assign(
            line=[_line(options) for options in rows["options"]],
            speedup_over_twin=[ratio.estimate if ratio else math.nan for ratio in ratios],
        )
        distinct = _distinct(pair)
        diversity = {PERPLEXITY: "perplexity", **dict.fromkeys(distinct[len(distinct) // 2 :][:1], "distinct")}
        columns = {pair.score: "score"} | {key: name for key, name in diversity.items() if _measured(pair.masked, key)}
        both = {f"{key}{end}": f"{name}{end}" for key, name in columns.items() for end in ("", "_low", "_high")}
        twin = pair.reference.rename(both)
        twin["speedup_over_twin"] = 1.0
        labels = {name: key.partition(".")[2].replace("_", " ") for key, name in columns.items()}
        yield ChartData(
            pair.masked.title,
            rows.rename(columns=both).sort_values("passes"),
            across={f"{pair.twin.backbone}, AR": twin},
            fields={"twin": pair.twin.backbone, "distinct": "", **labels},
        )


def _line(options: Mapping[str, float | str]) -> str:
    """Return the name of a line: the order of its cells, and options that are not at their default."""
    changed = [f"{key}={options[key]:g}" for key in ("block", "alg_temp") if options.get(key)]
    return ", ".join([str(options["order"]), *changed])


def _baseline(group: CellGroup) -> str:
    rows = group.rows[group.rows["role"] == "baseline"]
    return str(rows["method"].iloc[0]) if len(rows) else ""


def _measured(group: CellGroup, key: str) -> bool:
    return key in group.rows and bool(group.rows[key].notna().all())


def _distinct(pair: TwinPair) -> list[str]:
    """Return the keys of distinct-n, by n."""
    keys = [str(key) for key in pair.masked.rows if str(key).removeprefix(DISTINCT).isdecimal()]
    return sorted(keys, key=lambda key: int(key.removeprefix(DISTINCT)))


def _scores(finished: FinishedCell, name: str) -> pd.DataFrame:
    return pd.DataFrame({"value": finished.scores[name], "one": 1.0})


def _token_s(finished: FinishedCell) -> pd.Series[float]:
    """Return seconds per output token by sample, prefill included."""
    frame = finished.totals
    return (frame["wall_s"] + frame["prefill_ms"].fillna(0) / 1e3) / frame["output"]
