"""Rows of the figures of SJD++: resolution, initialisation, refinement, batches, exact reuse, and diversity by seed.

In the batch sweep, throughput is output tokens over the time of the batch, and the speed-up is over the autoregressive
batch of the same B, as in every table. Both exact rules keep the model's distribution, as the run's proof enumerates:
M is the maximal coupling of each draft with its new distribution, and G uses the same Gumbel noise at the same place
again. Diversity is the task's: the mean distance of every two pictures of a prompt, averaged over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.metrics import METRICS
from stridebench.harness.record.store import Store
from stridebench.reports.contact_sheets import COLUMNS, name_row, sample, tile
from stridebench.reports.finished_cell import FinishedCell, token_ms
from stridebench.reports.papers.charts import ChartData, quality_of, source
from stridebench.reports.papers.drawing import QUALITIES, figure, sheet
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, decoded, over_seeds, plain
from stridebench.reports.papers.paper_files import printed, published
from stridebench.reports.tables import COLUMN
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text, measured_text, number


@source("sjdpp_resolution")
def resolution(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the methods of Fig. 6 with several sizes of pictures: one line a method and task, one point a backbone."""
    rows = pd.concat([group.rows[group.rows["role"] == "method"] for group in run.groups]).sort_values("tokens")
    rows = rows[rows.groupby(["label", "task"])["tokens"].transform("nunique") > 1]
    marks = rows["backbone"].where(~rows["backbone"].duplicated(), "")
    lines = rows["label"] + ", " + rows["task"]
    title = "printed, Lumina-mGPT: above 2 at 1K and 2.3K tokens, 2.43 at 4.1K"
    yield ChartData(title, rows.assign(line=lines, colour=rows["label"], mark=marks))


@source("sjdpp_inits")
def inits(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 13: tokens a pass of each output, by initialisation."""
    for group in run.groups:
        names = [str(options.get("init", "")) for options in group.rows["options"]]
        yield from _dots(
            run.store, group, "scr", names, {"note": over_seeds(group.rows[[bool(name) for name in names]])}
        )


@source("sjdpp_refinement")
def refinement(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 12: passes a token with and without refinement."""
    by_init = printed("sjdpp_fig12").rows.groupby("Init")
    steps = ", ".join(f"{name} {part['Steps'].astype(float).mean():.0f}" for name, part in by_init)
    kinds = {True: "refined", False: "thrown away"}
    for group in run.groups:
        settings = [(options.get("init"), options.get("refine")) for options in group.rows["options"]]
        names = ["" if refine is None else f"{init}, {kinds[bool(refine)]}" for init, refine in settings]
        yield from _dots(run.store, group, "nfe_per_output", names, {"steps": steps})


def _dots(
    store: Store, group: CellGroup, name: str, lines: Sequence[str], fields: Mapping[str, str]
) -> Iterator[ChartData]:
    """Yield the cells that have a line with a metric of each output."""
    rows = group.rows.assign(line=lines)
    rows = rows[rows["line"] != ""]
    totals = [FinishedCell.of(store.cell(str(cell))).totals for cell in rows.index]
    metric = METRICS[name]
    values = [(frame[metric.numerator] / frame[metric.denominator]).tolist() for frame in totals]
    yield ChartData(group.title, rows.assign(values=pd.Series(values, rows.index, dtype=object)), fields=fields)


def break_even(batches: Sequence[int], speedups: Sequence[float]) -> float | None:
    """Return the B from which on nothing is gained: the speed-up last falls to 1 there, interpolated over log2 B.

    Returns:
        The smallest B if no B gains, or None if the largest B still gains.
    """
    points = [(math.log2(batch), value) for batch, value in zip(batches, speedups, strict=True)]
    if not points or points[-1][1] > 1:
        return None
    for (x, above), (right, below) in reversed(list(pairwise(points))):
        if above > 1:
            return float(2 ** (x + (right - x) * (above - 1) / (above - below)))
    return float(2 ** points[0][0])


@source("sjdpp_batch")
def batches(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield each method and the baseline by B; ``ends`` is the end of a method's gain, and ``limit`` says so."""
    for group in run.groups:
        parts = []
        for label, rows in group.rows.groupby("label", sort=False):
            rows = rows.sort_values("batch")
            if rows["role"].iloc[0] == "baseline":
                parts.append(rows.assign(line=str(label), limit="-", gain=math.nan, ends=math.nan))
                continue
            end = break_even(rows["batch"].astype(int).tolist(), rows["speedup"].astype(float).tolist())
            line = str(label) if end is None else f"{label}: no gain from B = {end:.2g}"
            limit = f"none up to {rows['batch'].max():g}" if end is None else number(end, 1)
            intervals = {f"gain{tail}": rows.get(f"speedup{tail}") for tail in ("", "_low", "_high")}
            parts.append(rows.assign(line=line, limit=limit, ends=math.nan if end is None else end, **intervals))
        yield ChartData(group.title, pd.concat(parts))


# Exact reuse: paired differences to SJD


@source("sjdpp_exact")
def exact(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield the compared decodings of each group with SJD, with the qualities of single outputs."""
    for group in run.groups:
        names = _compared(group)
        if "SJD" in names:
            rows = group.rows.loc[list(names.values())].assign(line=list(names))
            yield ChartData(group.title, rows[[column for column in rows if not str(column).startswith("set.")]])


def _compared(group: CellGroup) -> dict[str, str]:
    """Return the cells of the compared decodings, as far as they were run."""
    cells = {
        "AR": group.find(method="autoregressive"),
        "SJD": group.find(method="sjd"),
        "SJD++ as published": group.find(method="sjdpp", **published("sjdpp")),
        "reuse M, maximal coupling": group.find(method="sjdpp", reuse="M"),
        "reuse G, Gumbel noise by place": group.find(method="sjdpp", reuse="G"),
    }
    return {name: cell for name, cell in cells.items() if cell is not None}


@sheet("sjdpp_exact")
def exact_table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group with SJD: speed, total variation and quality of each method, and less SJD's."""
    notes = (
        "less SJD: the difference to SJD, / SJD: the ratio (median), both paired by prompt and seed, with a 95 % "
        "interval; each of its bounds alone is one-sided at 97.5 %",
        "total variation: of the run's own proof, the worst enumerated model; no sampling noise",
        "histogram TV: between the token histograms of the method and of AR, next to that of AR with other seeds",
    )
    for group in run.groups:
        names = _compared(group)
        if "SJD" in names and len(names) > 1:
            outputs = {name: FinishedCell.of(run.store.cell(cell)) for name, cell in names.items()}
            lines = [_exact_line(group, group.row(cell), outputs, name) for name, cell in names.items()]
            yield from plain(f"SJD++ beyond the paper: exact reuse | measured on {group.title}", lines, notes)


def _exact_line(
    group: CellGroup, row: pd.Series[Any], outputs: Mapping[str, FinishedCell], name: str
) -> dict[str, str]:
    finished, base, is_other = outputs[name], outputs["SJD"], name != "SJD"
    variation, ratio = row["total_variation"], stats.median_ratio(token_ms(base.totals), token_ms(finished.totals))
    scr_gap = stats.difference(base.totals, finished.totals, "output", "nfe")
    line = {
        "decoding": name,
        "verdict": str(row["verdict"] or "-"),
        "total variation": UNMEASURED if pd.isna(variation) else f"{variation:.2g}",
        "tokens a pass": measured_text(row, "scr"),
        "tokens a pass, less SJD": estimate_text(scr_gap) if is_other else "-",
        "wall speed-up": measured_text(row, "speedup"),
        "seconds, SJD / this": estimate_text(ratio) if is_other else "-",
    }
    for key in QUALITIES:
        if key in group.rows and not key.startswith("set."):  # of single outputs, which can be paired
            gap = stats.difference(_values(base, key), _values(finished, key), "value", "one")
            line[QUALITIES[key]] = measured_text(row, key, digits=3)
            line[f"{QUALITIES[key]}, less SJD"] = estimate_text(gap, 3) if is_other else "-"
    return line | {"histogram TV to AR (floor), p": COLUMN["test"].text(row)}


def _values(finished: FinishedCell, key: str) -> pd.DataFrame:
    """Return numerator and denominator of a quality by sample."""
    if key == "logprob":
        return finished.totals[["logprob", "output"]].set_axis(["value", "one"], axis=1)
    return finished.scores.reindex(columns=[key.removeprefix("score.")]).set_axis(["value"], axis=1).assign(one=1.0)


# Diversity. A column of a sheet is one seed, so that only decoding and K change down a column.


DISTANCES = {
    "set.diversity_lpips": "diversity, LPIPS",
    "set.diversity_efflite0": "diversity, cosine of EfficientNet-Lite0",
}
PROMPTS = 3
"""Most sheets, as many as the paper's prompts."""


@sheet("sjdpp_diversity")
def diversity_table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group that measures diversity: one row a decoding and K."""
    notes = (
        "diversity: mean distance of every two pictures of a prompt, over prompts; [low, high] is a 95 % interval over "
        "the prompts, none where there is one; 0 where no seed changes the picture",
        "decodings of one law have one diversity, whatever its size; one that collapses has less",
    )
    for group in run.groups:
        scores = [run.store.cell(str(name)).meta.set_scores for name in group.rows.index]
        titles = {
            key: title
            for key, title in DISTANCES.items()
            if any(key.removeprefix("set.") in names for names in scores)  # with a value or with a reason
        }
        if not titles:
            continue
        if quality := quality_of(group.rows):
            titles[quality] = QUALITIES[quality]
        lines = [
            {
                "decoding": str(row["label"]),
                "top-k": str(row["top_k"] or "all"),
                "prompts": f"{row['prompts']:g}",
                "pictures": f"{row['n_ok']:g}",
                **{title: measured_text(row, key, digits=4) for key, title in titles.items()},
            }
            for _, row in _ordered(group).iterrows()
        ]
        yield from plain(f"SJD++, Figs. 2 and 10: diversity | measured on {group.title}", lines, notes)


@figure("sjdpp_fig10")
def same_seed(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Figs. 2 and 10: one sheet a prompt, one row a decoding and K, one column a seed."""
    for group in run.groups:
        rows = _ordered(group)
        names = [f"{row['label']}, top-k {row['top_k'] or 'all'}" for _, row in rows.iterrows()]
        cells = {name: run.store.cell(str(cell)) for name, cell in zip(names, rows.index, strict=True)}
        samples = pd.concat([decoded(cell) for cell in cells.values()])
        seeds = sorted(set(samples["repetition"]))
        if len(seeds) < 2 or not samples["output"].fillna("").str.endswith(".png").any():
            continue
        for prompt in list(dict.fromkeys(samples["prompt"]))[:PROMPTS]:
            yield _seeds(run.store, f"{prompt}\n{group.title}", cells, prompt, seeds)


def _seeds(store: Store, title: str, cells: Mapping[str, SealedCell], prompt: str, seeds: Sequence[int]) -> Figure:
    """Draw the sheet of one prompt, one row a cell."""
    shown_seeds = seeds[:COLUMNS]
    left = f"; {len(seeds) - COLUMNS} more seeds" if len(seeds) > COLUMNS else ""
    drawn = Figure(figsize=(1.3 * len(shown_seeds) + 1.6, 1.3 * len(cells) + 0.9), dpi=130, layout="constrained")
    drawn.suptitle(f"Figs. 2 and 10: one seed a column, {title}{left}", fontsize=8)
    for row, (name, cell) in enumerate(cells.items()):
        for column, seed in enumerate(shown_seeds):
            place = (len(cells), len(shown_seeds), row * len(shown_seeds) + column + 1)
            axes = tile(store, drawn, place, sample(cell, prompt, seed))
            if row == 0:
                axes.set_title(f"seed {seed}", fontsize=7)
            if column == 0:
                name_row(axes, name)
    return drawn


def _ordered(group: CellGroup) -> pd.DataFrame:
    """Sort decodings in the order of the run, each by K."""
    order = {label: place for place, label in enumerate(dict.fromkeys(group.rows["label"]))}
    keys = {"label": group.rows["label"].map(order), "size": group.rows["top_k"].replace(0, np.inf)}
    return group.rows.loc[pd.DataFrame(keys).sort_values(["label", "size"], kind="stable").index]
