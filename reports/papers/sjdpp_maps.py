"""Pictures of SJD++: where decoding was fast (Fig. 11), and where long accepted runs have low quality (Fig. 14).

A run is the tokens of one step. Its local quality is their mean log-probability under the target: low where the model
itself would hardly have sampled them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import GridEntry
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import (
    Ints,
    blank,
    figure,
    first_of,
    group_title,
    has_pictures,
    on_grid,
    sheet,
    show_output,
)
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, counted, plain
from stridebench.reports.text_table import TextTable, estimate_text

RASTER = ("jacobi", "sjd", "sjdpp", "gsd")
"""Methods that decode a picture in raster order, so that a token's cell is its index."""
PROMPTS, METHODS, WORST = 4, 3, 6
"""Most rows and methods of a map, and pictures in a row of the worst."""
LONG = 0.9
"""Runs at or above this quantile of their cell's lengths are long."""


def runs(cell: SealedCell) -> pd.DataFrame:
    """Return one row a run of counted outputs: prompt, repetition, begin (of the first token), length, logprob."""
    steps = cell.steps[~cell.steps["warmup"].astype(bool)].sort_values("step")
    emitted = dict(list((steps["emitted"] - steps["overshoot"]).groupby([steps[key] for key in KEYS], sort=False)))
    rows = []
    for sample in counted(cell).itertuples():
        lengths = emitted[sample.prompt, sample.repetition].to_numpy()
        begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        values = np.asarray(sample.logprobs, dtype=np.float64)
        for begin, length in zip(begins, lengths, strict=True):
            inside = values[begin : begin + length]
            mean = float(inside.mean()) if len(inside) == length and length else None
            rows.append((sample.prompt, sample.repetition, int(begin), int(length), mean))
    return pd.DataFrame(rows, columns=[*KEYS, "begin", "length", "logprob"])


def lengths_on_grid(picture: pd.DataFrame, grid: GridEntry) -> Ints:
    """Return the length of each cell's run, [rows, columns], without ends of rows."""
    return on_grid(np.repeat(picture["length"].to_numpy(dtype=np.int64), picture["length"]), grid)


@figure("sjdpp_fig11")
def acceleration(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 11: each picture, and the number of tokens in the pass of each cell."""
    for group, all_cells in _drawable(run):
        cells = all_cells[:METHODS]
        runs_of_cells = {cell.name: runs(cell) for cell in cells}
        prompts = list(dict.fromkeys(prompt for rows in runs_of_cells.values() for prompt in rows["prompt"]))[:PROMPTS]
        shade = Normalize(1, max(int(rows["length"].max()) for rows in runs_of_cells.values() if len(rows)))
        drawn = blank(group_title("Fig. 11: tokens accepted in one pass", group), len(prompts), 2 * len(cells))
        for place, (prompt, cell) in enumerate((p, c) for p in prompts for c in cells):
            plain, over = drawn.axes[2 * place : 2 * place + 2]
            picture = first_of(runs_of_cells[cell.name], prompt)
            if picture.empty or not show_output(plain, run.store, cell, prompt, picture["repetition"].iloc[0]):
                continue
            grid = cell.meta.picture
            show_output(over, run.store, cell, prompt, picture["repetition"].iloc[0])
            extent = (0, grid.columns, grid.rows, 0)
            over.imshow(lengths_on_grid(picture, grid), cmap="Reds", norm=shade, alpha=0.65, extent=extent)
            plain.set_title(prompt, fontsize=7)
            over.set_title(cell.meta.label, fontsize=6)
        drawn.colorbar(ScalarMappable(shade, "Reds"), ax=drawn.axes, shrink=0.6, label="tokens in the pass")
        yield drawn


@source("sjdpp_failures")
def failures(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 14 in numbers: local quality by run length, one line a method, and AR's mean."""
    for group, cells in _drawable(run):
        base = group.rows[group.rows["role"] == "baseline"]
        across = {"AR, all tokens": base.iloc[0]} if len(base) else {}
        rows = [by_length(runs(cell)).assign(line=cell.meta.label) for cell in cells]
        yield ChartData(group.title, pd.concat(rows), across=across)


def by_length(rows_of_runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean log-probability of tokens by the length of their run, with its interval."""
    rows = []
    for length, part in rows_of_runs.dropna().groupby("length"):
        mean = stats.mean(part.set_index(KEYS)["logprob"])
        if mean is not None:
            rows.append((length, mean.estimate, mean.low, mean.high))
    return pd.DataFrame(rows, columns=["length", "logprob", "logprob_low", "logprob_high"]).astype(float)


@figure("sjdpp_fig14-worst")
def worst(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 14 in pictures: the long runs of lowest local quality, framed in red."""
    for group, cells in _drawable(run):
        title = group_title("Fig. 14: long accepted runs that the target finds least likely", group)
        drawn = blank(title, len(cells[:METHODS]), WORST)
        for row, cell in enumerate(cells[:METHODS]):
            drawn.axes[row * WORST].set_ylabel(cell.meta.label, fontsize=7)
            for place, long_run in enumerate(worst_runs(runs(cell)).to_dict("records")):
                axes = drawn.axes[row * WORST + place]
                if show_output(axes, run.store, cell, long_run["prompt"], long_run["repetition"]):
                    _frame(axes, long_run["begin"], long_run["length"], cell.meta.picture)
                axes.set_title(
                    f"{long_run['prompt']}: {long_run['length']} tokens, {long_run['logprob']:.2f}", fontsize=6
                )
        yield drawn


def worst_runs(rows_of_runs: pd.DataFrame, count: int = WORST) -> pd.DataFrame:
    """Return the long runs of lowest log-probability, at most one a picture, worst first."""
    measured = rows_of_runs.dropna()
    if measured.empty:
        return measured
    long = measured[(measured["length"] >= measured["length"].quantile(LONG)) & (measured["length"] > 1)]
    return long.sort_values(["logprob", *KEYS]).drop_duplicates(KEYS).head(count)


def _drawable(run: MeasuredRun) -> Iterator[tuple[CellGroup, list[SealedCell]]]:
    """Yield groups with cells whose outputs are complete pictures on a known grid, in raster order."""
    for group in run.groups:
        cells = [cell for name in group.cells(*RASTER) if has_pictures(cell := run.store.cell(name))]
        if cells:
            yield group, cells


def _frame(axes: Axes, begin: int, length: int, grid: GridEntry) -> None:
    """Draw red boxes around the cells of a run, one in each of its rows."""
    for row in range(begin // grid.stride, (begin + length - 1) // grid.stride + 1):
        first = max(begin - row * grid.stride, 0)
        last = min(begin + length - row * grid.stride, grid.columns)
        if row < grid.rows and last > first:
            axes.add_patch(Rectangle((first, row), last - first, 1, fill=False, edgecolor="red", lw=1.3))


# Tokens a pass by region of the picture: smooth ground, textured ground or object, as the task says.
# The tokens of a pass share it equally, so that tokens / passes of a region is its part of the SCR.


NOTHING = pd.DataFrame({"tokens": [], "passes": []}, index=pd.MultiIndex.from_arrays([[], []], names=KEYS), dtype=float)
NOTES = (
    "of a region: its tokens / the passes they took; a pass is shared equally by the tokens that came in it",
    "less SJD: the difference to it, paired by prompt and seed",
    "ground: as the prompt asked for; object: where the task's detector found one",
)


def by_region(cell: SealedCell) -> dict[str, pd.DataFrame]:
    """Return ``tokens`` and ``passes`` of each region by (prompt, repetition), for pictures with known regions."""
    samples = counted(cell)
    if "regions" not in samples or not cell.meta.grid:
        return {}
    regions = dict(zip(samples[KEYS].itertuples(index=False, name=None), samples["regions"], strict=True))
    tables = []
    for key, part in runs(cell).groupby(KEYS, sort=False):
        names = list(regions[key])
        if names:
            passes = 1 / lengths_on_grid(part, cell.meta.picture).ravel()
            counts = {"region": names, "tokens": 1.0, "passes": passes}
            tables.append(pd.DataFrame({**dict(zip(KEYS, key, strict=True)), **counts}))
    if not tables:
        return {}
    sums = pd.concat(tables).groupby(["region", *KEYS]).sum()
    return {region: sums.loc[region] for region in sorted(set(sums.index.get_level_values("region")))}


@sheet("sjdpp_regions")
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return tokens a pass of each method and region, and less SJD's, for groups whose pictures have regions."""
    for group in run.groups:
        frames = {name: by_region(run.store.cell(name)) for name in group.cells(*RASTER)}
        frames = {name: regions for name, regions in frames.items() if regions}
        if frames:
            yield from _fill(group, frames)


def _fill(group: CellGroup, frames: Mapping[str, Mapping[str, pd.DataFrame]]) -> list[TextTable]:
    regions = sorted({region for frame in frames.values() for region in frame})
    base = group.find(method="sjd") or ""
    lines = []
    for name, frame in frames.items():
        line = {"decoding": group.label(name)}
        for region in regions:
            sums, base_sums = frame.get(region, NOTHING), frames.get(base, {}).get(region, NOTHING)
            gap = None if name == base else stats.difference(base_sums, sums, "tokens", "passes")
            line[region] = estimate_text(stats.ratio(sums, "tokens", "passes"))
            line[f"{region}, less SJD"] = estimate_text(gap) if gap else "-"
        lines.append(line)
    tokens = {
        region: sum(float(frame[region]["tokens"].sum()) for frame in frames.values() if region in frame)
        for region in regions
    }
    shares = ", ".join(f"{region} {count / sum(tokens.values()):.0%}" for region, count in tokens.items())
    title = f"Tokens a pass by region of the picture | measured on {group.title}"
    return plain(title, lines, [*NOTES, f"cells of all pictures: {shares}"])
