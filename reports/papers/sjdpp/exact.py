"""Beyond SJD++: reuse as published and both exact rules, each with paired differences to SJD.

Both exact rules keep the model's distribution, as the run's proof enumerates. M is the maximal coupling of each
draft with its new distribution. G uses the same Gumbel noise at the same place again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.record import stats
from stridebench.reports.papers.drawing import COLOURS, QUALITIES, SCR, figure, legend, sheet, side_by_side
from stridebench.reports.papers.measured import CellGroup, MeasuredRun, plain
from stridebench.reports.papers.paper_files import published
from stridebench.reports.summary import FinishedCell, token_ms
from stridebench.reports.tables import COLUMN
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text, measured_text

TITLE = "SJD++ beyond the paper: exact reuse"
NOTES = (
    "less SJD: the difference to SJD, / SJD: the ratio (median), both paired by prompt and seed, with a 95 % interval; "
    "each of its bounds alone is one-sided at 97.5 %",
    "total variation: of the run's own proof, the worst enumerated model; no sampling noise",
    "histogram TV: between the token histograms of the method and of AR, beside that of AR with other seeds",
)


def _names(group: CellGroup) -> dict[str, str]:
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
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group with SJD: speed, total variation and quality of each method, and less SJD's."""
    for group in run.groups:
        names = _names(group)
        if "SJD" in names and len(names) > 1:
            outputs = {name: FinishedCell.of(run.store.cell(cell)) for name, cell in names.items()}
            lines = [_line(group, group.row(cell), outputs, name) for name, cell in names.items()]
            yield from plain(f"{TITLE} | measured on {group.title}", lines, NOTES)


def _line(group: CellGroup, row: pd.Series[Any], outputs: Mapping[str, FinishedCell], name: str) -> dict[str, str]:
    """Return one row by heading."""
    finished, base, is_other = outputs[name], outputs["SJD"], name != "SJD"
    variation, ratio = row["total_variation"], stats.median_ratio(token_ms(base.totals), token_ms(finished.totals))
    line = {
        "decoding": name,
        "verdict": str(row["verdict"] or "-"),
        "total variation": UNMEASURED if pd.isna(variation) else f"{variation:.2g}",
        "tokens a pass": measured_text(row, "scr"),
        "tokens a pass, less SJD": _gap(base.totals, finished.totals, "output", "nfe") if is_other else "-",
        "wall speed-up": measured_text(row, "speedup"),
        "seconds, SJD / this": estimate_text(ratio) if is_other else "-",
    }
    for key in _qualities(group):
        gap = _gap(_values(base, key), _values(finished, key), digits=3) if is_other else "-"
        line |= {QUALITIES[key]: measured_text(row, key, digits=3), f"{QUALITIES[key]}, less SJD": gap}
    return line | {"histogram TV to AR (floor), p": COLUMN["test"].text(row)}


def _qualities(group: CellGroup) -> list[str]:
    """Return the qualities of single outputs, which can be paired."""
    return [key for key in QUALITIES if key in group.rows and not key.startswith("set.")]


def _values(finished: FinishedCell, key: str) -> pd.DataFrame:
    """Return numerator and denominator of a quality by sample."""
    if key == "logprob":
        return finished.totals[["logprob", "output"]].set_axis(["value", "one"], axis=1)
    return finished.scores.reindex(columns=[key.removeprefix("score.")]).set_axis(["value"], axis=1).assign(one=1.0)


def _gap(a: pd.DataFrame, b: pd.DataFrame, top: str = "value", below: str = "one", digits: int = 2) -> str:
    return estimate_text(stats.difference(a, b, top, below), digits)


@figure("sjdpp_exact")
def draw(run: MeasuredRun) -> Iterator[Figure]:
    """Draw the table's values: speed, total variation and quality, one row a method."""
    for group in run.groups:
        names = _names(group)
        if "SJD" not in names:
            continue
        keys = {
            "scr": SCR,
            "speedup": "wall speed-up over AR",
            "total_variation": "total variation, worst enumerated model",
            **{key: QUALITIES[key] for key in _qualities(group)},
        }
        drawn, panels = side_by_side(len(keys), TITLE, group.title)
        for axes, (key, title) in zip(panels, keys.items(), strict=True):
            for place, (name, cell) in enumerate(names.items()):
                _mark(axes, group.row(cell), key, place, name)
            axes.set(xlabel=title, ylim=(len(names) - 0.5, -0.5), yticks=[])
            axes.grid(color="0.94", zorder=0)
        legend(drawn, panels[0])
        yield drawn


def _mark(axes: Axes, row: pd.Series[Any], key: str, place: int, name: str) -> None:
    """Draw a value with its interval, if it was measured."""
    value = row.get(key)
    if value is None or pd.isna(value):
        return
    bounds = [row.get(f"{key}_{end}") for end in ("low", "high")]
    low, high = (float(value) if end is None or pd.isna(end) else float(end) for end in bounds)
    bar = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar(value, place, xerr=bar, color=COLOURS[place], marker="o", ms=5, capsize=3, label=name)
