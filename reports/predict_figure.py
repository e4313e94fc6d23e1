"""The picture of `stride predict --measured`: predicted over measured speed-ups, both axes logarithmic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from stridebench.reports.plot_style import COLOURS, MARKERS, STYLE
from stridebench.reports.predict import scatter

FAR = 0.25
"""Relative error beyond which a cell is named in the picture."""


def draw(frame: pd.DataFrame, path: Path, title: str) -> None:
    """Write the picture of cells that have both figures.

    Args:
        frame: of ``predict`` with measured speed-ups; at least one row has both.
    """
    both = frame.dropna(subset=["predicted_median", "measured"]).astype({"predicted_median": float, "measured": float})
    spread = scatter(frame)
    assert spread is not None
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2, 4.8), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        ends = np.array(
            [
                both[["predicted_median", "measured"]].min().min() / 1.2,
                both[["predicted_median", "measured"]].max().max() * 1.2,
            ]
        )
        axes.plot(ends, ends, color="0.6", lw=0.9)
        axes.fill_between(ends, ends * (1 - FAR), ends * (1 + FAR), color="0.92", label=f"within {FAR:.0%}")
        for place, (backbone, cells) in enumerate(both.groupby("backbone", sort=True)):
            colour = COLOURS[place % len(COLOURS)]
            look: dict[str, Any] = {"color": colour, "marker": MARKERS[colour], "ls": "", "ms": 4.5, "alpha": 0.85}
            axes.plot(cells["measured"], cells["predicted_median"], label=str(backbone), **look)
        far = both[(both["predicted_median"] / both["measured"] - 1).abs() > FAR]
        for _, cell in far.iterrows():
            axes.annotate(
                cell["label"],
                (cell["measured"], cell["predicted_median"]),
                fontsize=6,
                xytext=(4, 2),
                textcoords="offset points",
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set(xlabel="measured speed-up", ylabel="predicted speed-up")
        ticks = [2.0**power for power in range(-6, 7) if ends[0] <= 2.0**power <= ends[1]]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_minor_locator(NullLocator())
        figures = f"{spread.cells} cells, median error {spread.median:.1%}, worst {spread.worst:.0%}"
        axes.set_title(f"{title}: {figures}", fontsize=8)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
