"""What the papers' figures share: titles of axes, colours, panels, curves with intervals, and files by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.papers.measured import Measured
from reports.plot_style import STYLE

QUALITIES = {
    "set.geneval_overall": "GenEval",
    "set.families": "GenEval's families, mean of six",
    "score.overall": "share of right pictures",
    "score.named": "share of digits named as asked",
    "set.clip_score": "CLIP score",
    "set.dpg_bench": "DPG-Bench",
    "set.hpsv2": "HPSv2",
    "set.fid": "FID, lower is better",
    "set.fd_efflite0": "FD-EffLite0, lower is better",
    "logprob": "log-probability, nat/token",
}
"""What a curve's quality may be; the first that was measured is drawn."""
COLOURS = tuple(f"tab:{name}" for name in ("blue", "orange", "green", "purple", "brown", "pink", "olive", "cyan"))
SCR, SECONDS = "output tokens / target pass", "seconds a picture"


def quality_of(rows: pd.DataFrame) -> str | None:
    """The first quality that all rows have; None: they share none."""
    return next((key for key in QUALITIES if key in rows and rows[key].notna().all()), None)


def side_by_side(count: int, group: Measured, title: str) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels side by side, its title over what was measured."""
    figure = Figure(figsize=(4.6 * count + (1.6 if count == 1 else 0), 3.9), dpi=130, layout="constrained")
    figure.suptitle(f"{title}\n{group.title}", fontsize=9)
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


def curve(
    axes: Axes, x: Sequence[float] | pd.Series[Any], rows: pd.DataFrame, key: str, label: str, colour: str
) -> None:
    """Points joined by a line, each with its interval where there is one."""
    values = rows[key].astype(float)
    ends = [rows.get(f"{key}{end}", values).astype(float).fillna(values) for end in ("_low", "_high")]
    bars = np.array([(values - ends[0]).clip(lower=0), (ends[1] - values).clip(lower=0)])
    axes.errorbar(list(x), values, bars, color=colour, marker="o", ms=4, lw=1.3, elinewidth=0.8, capsize=2, label=label)
    axes.grid(color="0.94", zorder=0)


def legend(figure: Figure, axes: Axes) -> None:
    """Below the panels, where it hides nothing, in as many columns as the figure is wide enough for."""
    handles, labels = axes.get_legend_handles_labels()
    for columns in (4, 3, 2, 1):
        drawn = figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        if columns == 1 or drawn.get_window_extent().width <= figure.bbox.width:
            return
        drawn.remove()


def spread(count: int) -> Any:
    """Offsets that keep dots of one row apart, the same each time."""
    return (np.arange(count) % 5 - 2) * 0.08


def save_each(
    groups: Sequence[Measured], outdir: Path, name: str, draw: Callable[[Measured], Figure | None]
) -> list[Path]:
    """Save a figure for each group that has one."""
    written: list[Path] = []
    with rc_context(STYLE):
        for group in groups:
            figure = draw(group)
            if figure is not None:
                written.append(save(figure, outdir, name, len(written)))
    return written


def save(figure: Figure, outdir: Path, name: str, before: int = 0) -> Path:
    """Write a figure's file; ``before``: how many of the same name there are."""
    path = outdir / f"papers-{name}{f'-{before + 1}' if before else ''}.png"
    with rc_context(STYLE):
        figure.savefig(path, metadata={"Software": None})
    return path
