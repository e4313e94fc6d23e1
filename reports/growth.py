"""The picture of `stride bench scale`: seconds and memory over the size, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from stridebench.reports.plot_style import COLOURS, STYLE

Curve = tuple[str, Sequence[tuple[float, float, float]], tuple[float, float | None, float | None]]
"""A title; size, seconds and MB of each measurement; and the slope with the bounds of its interval."""


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Write the picture, a panel a curve: seconds on the left axis and MB on the right one."""
    with rc_context(STYLE):
        figure = Figure(figsize=(3.9 * len(curves), 3.6), dpi=130, layout="constrained")
        for place, (title, points, (slope, low, high)) in enumerate(curves):
            axes = figure.add_subplot(1, len(curves), place + 1)
            sizes = np.array(sorted({size for size, _, _ in points}))
            seconds, memory = (
                np.array([np.median([point[at] for point in points if point[0] == size]) for size in sizes])
                for at in (1, 2)
            )
            axes.plot([p[0] for p in points], [p[1] for p in points], "o", ms=3, color=COLOURS[0], alpha=0.5)
            axes.plot(sizes, seconds, color=COLOURS[0], label="seconds")
            axes.plot(sizes, seconds[-1] * sizes / sizes[-1], color="0.7", ls="--", lw=0.9, label="slope 1")
            bounds = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
            axes.set(xscale="log", yscale="log", xlabel=title.rpartition(" ")[2], ylabel="seconds")
            axes.set_title(f"{title}: slope {slope:.2f}{bounds}", fontsize=8)
            for axis in (axes.xaxis, axes.yaxis):  # the fonts of a plot have no superscripts
                axis.set_major_locator(LogLocator(numticks=5))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axis.set_minor_formatter(NullFormatter())
                axis.set_tick_params(labelsize=7)
            if np.isfinite(memory).all():
                beside = axes.twinx()
                beside.plot(sizes, memory, color=COLOURS[1], marker="s", ms=3, label="MB")
                beside.set_ylabel("MB more than before")
            axes.legend(fontsize=7, frameon=False, loc="upper left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
