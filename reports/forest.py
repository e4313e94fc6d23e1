"""The picture that a run ends with: a row a method, its speed-up with the interval, and its quality next to it.

Filled points are exact and open ones approximate. A thin line is an interval that holds 1, so that no gain is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stridebench.reports.pareto import BROKEN, STYLE, save
from stridebench.reports.quality import in_words
from stridebench.reports.ranked import RankedGroup, gains, groups, is_measured, loses, of_baseline, value_of
from stridebench.reports.tables import HALF

LOOKS = {
    "exact": {"color": "#117a4b", "marker": "o", "label": "exact"},
    "approximate": {"color": "#c26a00", "marker": "D", "label": "approximate, by design"},
    "broken": {"color": BROKEN, "marker": "X", "label": "broken"},
    "unverified": {"color": "#777777", "marker": "s", "label": "unverified"},
}
WORSE = "#c0162c"
TICKS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100)
POWERS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
LONGEST = 48
"""Characters of a name; half of them in a column."""
FILES = ("forest.png", "forest.svg")
MOST = 120
"""Rows of a picture. Of a larger run the fastest of each group are drawn."""


Entries = list[tuple[RankedGroup, "pd.Series[Any] | None"]]
"""The rows of the picture: the title of a group, or one of its cells."""


def quality(row: pd.Series[Any], group: RankedGroup) -> str:
    """Return the quality of a cell in words: equal tokens at T = 0, else what it loses, and the task's main score."""
    if not row["temperature"]:
        agreement, rounded = value_of(row, "agreement"), f" ({row['dtype']})" if row["dtype"] in HALF else ""
        return (
            "same tokens" if agreement == 1 else f"agreement {agreement:.2f}{rounded}" if agreement == agreement else ""
        )
    parts = []
    if loses(row, group) and value_of(row, "logprob_diff_high") < 0:
        parts.append(f"loses {-row['logprob_diff']:.2f} nat")
    if group.score is not None and is_measured(row, group.score):
        parts.append(" ".join([in_words(row, group.score), *(f"({words})" for words in of_baseline(group))]))
    return ", ".join(parts)


def write(frame: pd.DataFrame, outdir: Path, title: str, names: Sequence[str] = FILES) -> list[Path]:
    """Write the plot, and return the paths; none if no method has a speed-up.

    Args:
        names: of the files, which end in .png or .svg.
    """
    return save(lambda: draw(frame, title), outdir, names)


def draw(frame: pd.DataFrame, title: str = "", column: bool = False) -> Figure | None:
    """Draw the forest plot of a summary; return None if no method has a speed-up.

    Args:
        column: 3.3 inches wide with the speed-ups alone, for a column of a paper.
    """
    drawn = list(groups(frame))
    if not drawn:
        return None
    most = max(1, MOST // len(drawn))
    entries: Entries = []
    for group in drawn:
        entries += [(group, None), *((group, row) for _, row in group.methods.head(most).iterrows())]
    size = 6.5 if column else 8.5
    rows = [row for _, row in entries if row is not None and row["temperature"]]
    sampled = any(is_measured(row, "logprob_diff") for row in rows) and not column
    bands = sampled and any(group.floor is not None for group, _ in entries)
    with rc_context(STYLE | {"font.size": size}):
        width, height = (3.3, 0.17) if column else (11.0, 0.27)
        figure = Figure(figsize=(width, height * len(entries) + 1.5), dpi=150, layout="constrained")
        shape = {"width_ratios": [3, 1.4]} if sampled else {}
        left, *more = figure.subplots(1, 2 if sampled else 1, sharey=True, squeeze=False, gridspec_kw=shape)[0]
        for axes in (left, *more):
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)
        _speedups(left, entries, size, column)
        if more:
            _logprobs(more[0], entries)
        if not column:
            _words((left, *more)[-1], entries)
        figure.legend(
            handles=_keys(entries, bands), loc="outside lower center", ncols=2 if column else 5, frameon=False
        )
        if title and not column:
            figure.suptitle(f"{title}: which methods pay here, and at what cost", fontweight="bold", fontsize=size + 2)
    return figure


def _speedups(axes: Axes, entries: Entries, size: float, column: bool) -> None:
    rows = [row for _, row in entries if row is not None]
    ends = [
        value
        for row in rows
        for key in ("speedup", "speedup_low", "speedup_high")
        if is_measured(row, key)
        for value in [row[key]]
    ]
    low, top = min(0.9, *ends) * 0.94, max(1.1, *ends)
    high = top * max(1.5, (top / low) ** 0.15)  # the numbers stand at the right edge
    axes.set(xscale="log", xlim=(low, high), ylim=(len(entries) - 0.4, -0.7))
    ticks = [tick for tick in (POWERS if column else TICKS) if low < tick < high / 1.25]
    axes.set_xticks(ticks, ["1\nAR" if tick == 1 else f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("speed-up over AR" if column else "speed-up over AR (95 % interval over prompts; | predicted)")
    axes.axvspan(low, 1, color="#fbeeee", lw=0, zorder=0)
    axes.axvline(1, color="0.15", lw=1, zorder=1)
    longest = LONGEST // 2 if column else LONGEST
    names = [group.title * (not column) if row is None else _short(row["label"], longest) for group, row in entries]
    axes.set_yticks(range(len(entries)), names)
    for label, (_, row) in zip(axes.get_yticklabels(), entries, strict=True):
        label.set_fontweight("bold" if row is None else "normal")
    for y, (group, row) in enumerate(entries):
        if row is None:
            axes.axhline(y + 0.5, color="0.87", lw=0.6, zorder=0)
            if column:  # a title is as wide as the figure, and lies over the names and the plot
                at: dict[str, Any] = {
                    "xy": (0.01, y),
                    "xycoords": ("figure fraction", "data"),
                    "va": "center",
                    "fontweight": "bold",
                }
                axes.annotate(group.title, annotation_clip=False, **at).set_in_layout(False)
            continue
        look, sure = _look(row), gains(row) is not None
        if is_measured(row, "speedup_low"):
            width, alpha = (2.4, 1.0) if sure else (1.1, 0.55)
            ends = [row["speedup_low"], row["speedup_high"]]
            axes.plot(ends, [y, y], color=look["color"], lw=width, alpha=alpha, solid_capstyle="round", zorder=2)
        if is_measured(row, "predicted"):
            axes.plot(row["predicted"], y, "|", ms=size, color="0.15", mew=1, zorder=4)
        face = look["color"] if row["verdict"] in ("exact", "broken") else "white"
        axes.plot(row["speedup"], y, look["marker"], ms=size * 0.65, mfc=face, mec=look["color"], mew=1.4, zorder=3)
        text, colour = f"{row['speedup']:.2f}×", look["color"] if sure else "0.45"
        axes.text(1, y, text, transform=axes.get_yaxis_transform(), ha="right", va="center", color=colour)


def _logprobs(axes: Axes, entries: Entries) -> None:
    axes.axvline(0, color="0.15", lw=1, zorder=1)
    axes.set_xlabel("log-prob − AR, nat/token")
    for y, (group, row) in enumerate(entries):
        if row is None:
            axes.axhline(y + 0.5, color="0.87", lw=0.6, zorder=0)
            continue
        if not row["temperature"] or not is_measured(row, "logprob_diff"):
            continue
        if group.floor is not None and is_measured(group.floor, "logprob_diff_low"):
            band = [group.floor["logprob_diff_low"], group.floor["logprob_diff_high"]]
            axes.fill_betweenx([y - 0.5, y + 0.5], *band, color="0.94", lw=0, zorder=0)
        colour = _look(row)["color"]
        if is_measured(row, "logprob_diff_low"):
            axes.plot([row["logprob_diff_low"], row["logprob_diff_high"]], [y, y], color=colour, lw=1.6, zorder=2)
        axes.plot(row["logprob_diff"], y, "o", ms=4, color=colour, zorder=3)


def _words(axes: Axes, entries: Entries) -> None:
    """Write the quality of each row to the right of the picture, in red if it is shown to be worse."""
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    texts = ["" if row is None else quality(row, group) for group, row in entries]
    right.set_yticks(range(len(entries)), texts)
    right.tick_params(axis="y", length=0)
    right.spines[["left", "right"]].set_visible(False)
    for label, (group, row) in zip(right.get_yticklabels(), entries, strict=True):
        if row is not None:
            label.set_color(WORSE if loses(row, group) else "0.2")


def _keys(entries: Entries, bands: bool) -> list[Line2D]:
    looks = {_look(row)["label"]: _look(row) for _, row in entries if row is not None}
    keys = [
        Line2D(
            [],
            [],
            ls="",
            mew=1.4,
            mec=look["color"],
            mfc=look["color"] if name in ("exact", "broken") else "white",
            marker=look["marker"],
            label=name,
        )
        for name, look in looks.items()
    ]
    rows = [row for _, row in entries if row is not None]
    if any(gains(row) is None for row in rows):
        keys.append(Line2D([], [], color="0.5", lw=1.1, alpha=0.55, label="thin: no gain shown"))
    if bands:
        keys.append(Line2D([], [], color="0.9", lw=7, label="AR against AR"))
    return keys


def _look(row: pd.Series[Any]) -> dict[str, str]:
    return LOOKS.get(str(row["verdict"]), LOOKS["unverified"])


def _short(name: str, longest: int) -> str:
    """Cut a label behind the method's name, since the last parameters tell settings of one method apart."""
    if len(name) <= longest:
        return name
    method = name.partition(" ")[0]
    rest = longest - len(method) - 2
    return f"{method} …{name[-rest:]}" if rest > 0 else f"{name[: longest - 1]}…"
