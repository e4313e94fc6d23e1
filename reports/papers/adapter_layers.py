"""Hidden rows with and without an adapter, layer by layer: Cross-Regression's Fig. 3 as a table and a plot."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stridebench.reports.pareto import DASHES, STYLE
from stridebench.reports.text_table import Column, TextTable

COLUMNS = (
    Column("layer", "layer", 0, rank=0),
    Column("norm_vanilla", "norm, vanilla", rank=1),
    Column("norm_adapter", "norm, adapter", rank=1),
    Column("before_vanilla", "before, vanilla", 3, rank=3),
    Column("before_adapter", "before, adapter", 3, rank=3),
    Column("cosine", "both", 3, rank=2),
)
NOTES = [
    "norm: L2 norm of a row; before: cosine to the row of the layer before; both: cosine of vanilla and adapter",
    "layer 0 is the embedding, the last one the normed row that the head reads, of another scale",
]
SPREAD = 10
"""Norms are drawn on a logarithmic axis if the largest exceeds so many times the smallest."""


def table(frame: pd.DataFrame, title: str) -> TextTable:
    """Return a table with one row a layer.

    Args:
        frame: column ``layer``, and for each key in ``COLUMNS`` a mean with ``_low``, ``_high`` and ``_n``.
    """
    rows = [[column.text(row) for column in COLUMNS] for _, row in frame.iterrows()]
    return TextTable(title, COLUMNS, rows, NOTES)


def draw(frame: pd.DataFrame, title: str, path: Path) -> None:
    """Write the plot: norms above, cosines below; vanilla left, adapter right.

    The vanilla norm is drawn behind the adapter's too.
    """
    norms = frame[["norm_vanilla", "norm_adapter"]]
    scale = "log" if norms.min().min() > 0 and norms.max().max() > SPREAD * norms.min().min() else "linear"
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 6.4), dpi=130, layout="constrained")
        figure.suptitle(title, fontsize=9)
        panels = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, side in enumerate(("vanilla", "adapter")):
            _line(panels[0, column], frame, f"norm_{side}", "tab:blue", "norm")
            _line(panels[1, column], frame, f"before_{side}", "tab:orange", "to the layer before")
            panels[0, column].set_title(side)
            panels[1, column].set_xlabel(f"layer (0: embedding, {frame['layer'].max():.0f}: read by the head)")
        behind = frame["norm_vanilla"]
        panels[0, 1].plot(frame["layer"], behind, color="0.5", lw=1, ls=DASHES, label="norm, vanilla")
        _line(panels[1, 1], frame, "cosine", "tab:green", "to the vanilla row of the same layer")
        panels[0, 0].set(ylabel="L2 norm of a row", yscale=scale)
        panels[0, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[1, 0].set_ylabel("cosine")
        for axes in panels.flat:
            axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Software": None})


def _line(axes: Axes, frame: pd.DataFrame, key: str, colour: str, label: str) -> None:
    """Draw the mean of each layer with its 95 % interval, if there is one."""
    low, high = (frame[f"{key}_{end}"].astype(float) for end in ("low", "high"))
    axes.fill_between(frame["layer"], low, high, color=colour, alpha=0.2, lw=0)
    axes.plot(frame["layer"], frame[key], color=colour, marker="o", ms=3, lw=1.3, label=label)
    axes.grid(color="0.94", zorder=0)
