"""Pictures of SJD++: where decoding went fast (Fig. 11), and where long accepted runs went wrong (Fig. 14).

A run is what one step emitted. Its local quality is the mean log-probability of its tokens under the target: low where
the model itself would hardly have written them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib.image
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.record import stats
from reports.papers.drawing import COLOURS, save
from reports.papers.measured import Measured
from reports.plot_style import STYLE

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

RASTER = ("jacobi", "sjd", "sjdpp", "gsd")
"""Methods that emit a picture in raster order, so that a token's place is its index."""
PROMPTS, METHODS, WORST = 4, 3, 6
"""Rows and methods of a map at most, and pictures a row of the worst."""
LONG = 0.9
"""Runs in this quantile of their cell's lengths and above are long."""

Ints = npt.NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.float64)


def runs(cell: Cell) -> pd.DataFrame:
    """A row for each run of a counted output: prompt, repetition, begin (index of its first token), length, logprob."""
    good = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    steps = cell.steps[~cell.steps["warmup"].astype(bool)].sort_values("step")
    emitted = {key: part for key, part in (steps["emitted"] - steps["overshoot"]).groupby(_keys(steps), sort=False)}
    rows = []
    for sample in good.itertuples():
        lengths = emitted[sample.prompt, sample.repetition].to_numpy()
        begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        values = np.asarray(sample.logprobs, dtype=np.float64)
        for begin, length in zip(begins, lengths, strict=True):
            inside = values[begin : begin + length]
            mean = float(inside.mean()) if len(inside) == length and length else None
            rows.append((sample.prompt, sample.repetition, int(begin), int(length), mean))
    return pd.DataFrame(rows, columns=["prompt", "repetition", "begin", "length", "logprob"])


def lengths_on_grid(found: pd.DataFrame, grid: Mapping[str, int]) -> Ints:
    """The length of the run that each cell of a picture came in, [rows, columns]; ends of rows left out.

    Args:
        found: rows of ``runs`` of one picture. grid: rows, columns, stride.
    """
    return on_grid(np.repeat(found["length"].to_numpy(dtype=np.int64), found["length"]), grid)


def on_grid(each: npt.NDArray[Number], grid: Mapping[str, int]) -> npt.NDArray[Number]:
    """A value a token, token by token, as cells [rows, columns]; ends of rows left out."""
    return each[: grid["rows"] * grid["stride"]].reshape(grid["rows"], grid["stride"])[:, : grid["columns"]]


def acceleration(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 11: beside each picture, how many tokens came in one pass, cell by cell."""
    written: list[Path] = []
    for group, cells in _drawable(store, groups):
        held = {cell.name: runs(cell) for cell in cells[:METHODS]}
        prompts = list(dict.fromkeys(prompt for found in held.values() for prompt in found["prompt"]))[:PROMPTS]
        shade = Normalize(1, max(int(found["length"].max()) for found in held.values() if len(found)))
        figure = blank(group, "Fig. 11: tokens accepted in one pass", len(prompts), 2 * len(held))
        for place, (prompt, cell) in enumerate((p, c) for p in prompts for c in cells[:METHODS]):
            plain, over = (figure.axes[2 * place + side] for side in (0, 1))
            mine = held[cell.name][held[cell.name]["prompt"] == prompt]
            mine = mine[mine["repetition"] == mine["repetition"].min()]
            if mine.empty or not show_output(plain, store, cell, prompt, mine["repetition"].iloc[0]):
                continue
            grid = cell.meta["grid"]
            shape = (0, grid["columns"], grid["rows"], 0)
            show_output(over, store, cell, prompt, mine["repetition"].iloc[0])
            over.imshow(lengths_on_grid(mine, grid), cmap="Reds", norm=shade, alpha=0.65, extent=shape)
            plain.set_title(prompt, fontsize=7)
            over.set_title(str(cell.meta["label"]), fontsize=6)
        figure.colorbar(ScalarMappable(shade, "Reds"), ax=figure.axes, shrink=0.6, label="tokens in the pass")
        written.append(save(figure, outdir, "fig11", len(written)))
    return written


def failures(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 14 in numbers: local quality against the length of the run, a line a method, AR's mean beside it."""
    written: list[Path] = []
    for group, cells in _drawable(store, groups):
        with rc_context(STYLE):
            figure = Figure(figsize=(6.4, 4.2), dpi=130, layout="constrained")
            axes = figure.add_subplot()
            for colour, cell in zip(COLOURS, cells, strict=False):
                found = by_length(runs(cell))
                bars = np.array([found["logprob"] - found["low"], found["high"] - found["logprob"]]).clip(0)
                look: dict[str, Any] = {"marker": "o", "ms": 4, "lw": 1.2, "elinewidth": 0.8, "capsize": 2}
                look |= {"color": colour, "label": str(cell.meta["label"])}
                axes.errorbar(found.index, found["logprob"], np.nan_to_num(bars), **look)
            base = group.rows[group.rows["role"] == "baseline"]
            if len(base) and pd.notna(base["logprob"].iloc[0]):
                axes.axhline(base["logprob"].iloc[0], color="0.6", lw=1, label="AR, all tokens")
            axes.set(xlabel="tokens emitted in one pass", ylabel="mean log-probability of the run's tokens, nat")
            axes.legend(frameon=False, fontsize=8)
            figure.suptitle(f"Fig. 14: long accepted runs and local quality\n{group.title}", fontsize=9)
            written.append(save(figure, outdir, "fig14", len(written)))
    return written


def by_length(found: pd.DataFrame) -> pd.DataFrame:
    """Mean log-probability of tokens by the length of their run: logprob, low, high; indexed by length."""
    rows = {}
    for length, part in found.dropna().groupby("length"):
        each = part.set_index(["prompt", "repetition"])["logprob"]
        mean = stats.mean(each)
        if mean is not None:
            rows[length] = {"logprob": mean.estimate, "low": mean.low, "high": mean.high}
    return pd.DataFrame(rows, index=["logprob", "low", "high"]).T.astype(float)


def worst(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 14 in pictures: the long runs of the lowest local quality, framed in red."""
    written: list[Path] = []
    for group, cells in _drawable(store, groups):
        shown = cells[:METHODS]
        title = "Fig. 14: long accepted runs that the target finds least likely"
        figure = blank(group, title, len(shown), WORST)
        for row, cell in enumerate(shown):
            figure.axes[row * WORST].set_ylabel(str(cell.meta["label"]), fontsize=7)
            for place, run in enumerate(worst_runs(runs(cell)).to_dict("records")):
                axes = figure.axes[row * WORST + place]
                if show_output(axes, store, cell, run["prompt"], run["repetition"]):
                    _frame(axes, run["begin"], run["length"], cell.meta["grid"])
                axes.set_title(f"{run['prompt']}: {run['length']} tokens, {run['logprob']:.2f}", fontsize=6)
        written.append(save(figure, outdir, "fig14-worst", len(written)))
    return written


def worst_runs(found: pd.DataFrame, count: int = WORST) -> pd.DataFrame:
    """The long runs of lowest log-probability, one a picture at most, worst first."""
    known = found.dropna()
    if known.empty:
        return known
    long = known[(known["length"] >= known["length"].quantile(LONG)) & (known["length"] > 1)]
    ranked = long.sort_values(["logprob", "prompt", "repetition"])
    return ranked.drop_duplicates(["prompt", "repetition"]).head(count)


def _drawable(store: Store, groups: Sequence[Measured]) -> Iterator[tuple[Measured, list[Cell]]]:
    """Groups with cells whose outputs are whole pictures on a known grid, in raster order."""
    for group in groups:
        named = group.rows.index[group.rows["method"].isin(RASTER)]
        cells = [store.cell(str(name)) for name in named]
        kept = [c for c in cells if c.meta.get("grid") and c.samples["output"].fillna("").str.endswith(".png").any()]
        if kept:
            yield group, kept


def _keys(steps: pd.DataFrame) -> list[pd.Series[Any]]:
    return [steps["prompt"], steps["repetition"]]


def blank(group: Measured, title: str, down: int, across: int) -> Figure:
    """A sheet of so many panels without axes."""
    with rc_context(STYLE):
        figure = Figure(figsize=(1.5 * across + 0.8, 1.6 * down + 0.8), dpi=130, layout="constrained")
        figure.suptitle(f"{title}\n{group.title}", fontsize=9)
        for place in range(down * across):
            axes = figure.add_subplot(down, across, place + 1)
            axes.set(xticks=[], yticks=[])
            axes.set_axis_off()
    return figure


def show_output(axes: Axes, store: Store, cell: Cell, prompt: str, repetition: int) -> bool:
    """Draw an output in the units of its grid; False: there is none."""
    axes.set_axis_on()
    found = cell.samples[~cell.samples["warmup"].astype(bool)]
    found = found[(found["prompt"] == prompt) & (found["repetition"] == repetition)]
    name = "" if found.empty else str(found["output"].iloc[0])
    if not name.endswith(".png"):
        return False
    grid = cell.meta["grid"]
    pixels = matplotlib.image.imread(store.path / name)
    axes.imshow(pixels, extent=(0, grid["columns"], grid["rows"], 0), interpolation="nearest")
    return True


def _frame(axes: Axes, begin: int, length: int, grid: Mapping[str, int]) -> None:
    """Red boxes around the cells of a run, one in each row that it touches."""
    for row in range(begin // grid["stride"], (begin + length - 1) // grid["stride"] + 1):
        first = max(begin - row * grid["stride"], 0)
        last = min(begin + length - row * grid["stride"], grid["columns"])
        if row < grid["rows"] and last > first:
            axes.add_patch(Rectangle((first, row), last - first, 1, fill=False, edgecolor="red", lw=1.3))
