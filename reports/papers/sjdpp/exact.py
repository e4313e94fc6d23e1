"""Beyond SJD++: reuse as published and both exact ways, side by side, each difference to SJD paired.

Both exact ways keep the model's law, which the run's own proof enumerates: M couples each draft with its new law as
closely as can be, G races the same Gumbel noise at the same place again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.record import stats
from reports.papers.drawing import COLOURS, QUALITIES, SCR, legend, save_each, side_by_side
from reports.papers.measured import Measured, Wanted, shown, written
from reports.papers.tables import PUBLISHED
from reports.summary import FinishedCell, token_ms
from reports.tables import text
from reports.text_table import UNMEASURED, Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

RIVALS = {
    "AR": Wanted("autoregressive"),
    "SJD": Wanted("sjd"),
    "SJD++ as published": Wanted("sjdpp", PUBLISHED),
    "reuse M, maximal coupling": Wanted("sjdpp", {"reuse": "M"}),
    "reuse G, Gumbel noise by place": Wanted("sjdpp", {"reuse": "G"}),
}
NOTES = (
    "less SJD: the difference to SJD, / SJD: the ratio (median), both paired by prompt and seed, with a 95 % interval; "
    "each of its bounds alone is one-sided at 97.5 %",
    "total variation: of the run's own proof, the worst enumerated model; no sampling noise",
    "histogram TV: between the token histograms of the method and of AR, beside that of AR with other seeds",
)


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A table for each group in which SJD was run: speed, law and quality of each method, and less SJD's."""
    found = []
    for group in groups:
        names = _names(group)
        if "SJD" in names and len(names) > 1:
            held = {name: FinishedCell.of(store.cell(cell)) for name, cell in names.items()}
            lines = [_line(group, names, held, name) for name in names]
            columns = tuple(Column(title, title, rank=i) for i, title in enumerate(lines[0]))
            title = f"SJD++ beyond the paper: exact reuse | measured on {group.title}"
            found.append(TextTable(title, columns, [list(line.values()) for line in lines], list(NOTES)))
    return found


def _names(group: Measured) -> dict[str, str]:
    """Cells of RIVALS by name, those that were run."""
    found = {name: group.find(wanted) for name, wanted in RIVALS.items()}
    return {name: cell for name, cell in found.items() if cell is not None}


def _line(group: Measured, names: Mapping[str, str], held: Mapping[str, FinishedCell], name: str) -> dict[str, str]:
    """One row, by heading."""
    row, ours, base = group.row(names[name]), held[name], held["SJD"]
    other = name != "SJD"
    line = {
        "decoding": name,
        "verdict": str(row["verdict"]),
        "total variation": _variation(row),
        "tokens a pass": shown(row, ("scr",), 2),
        "tokens a pass, less SJD": _gap(base.totals, ours.totals, "output", "nfe") if other else "-",
        "wall speed-up": shown(row, ("speedup",), 2),
        "seconds, SJD / this": (
            written(stats.median_ratio(token_ms(base.totals), token_ms(ours.totals))) if other else "-"
        ),
    }
    for key in _qualities(group):
        line[QUALITIES[key]] = shown(row, (key,), 3)
        line[f"{QUALITIES[key]}, less SJD"] = _gap(_values(base, key), _values(ours, key), digits=3) if other else "-"
    return line | {"histogram TV to AR (floor), p": text(row, Column("test", "test"))}


def _variation(row: pd.Series[Any]) -> str:
    found = row["total_variation"]
    return UNMEASURED if pd.isna(found) else f"{found:.2g}"


def _qualities(group: Measured) -> list[str]:
    """Those measured output by output, so that they can be paired."""
    return [key for key in QUALITIES if key in group.rows and not key.startswith("set.")]


def _values(held: FinishedCell, key: str) -> pd.DataFrame:
    """Numerator and denominator of a quality, by sample."""
    if key == "logprob":
        return held.totals[["logprob", "output"]].set_axis(["value", "one"], axis=1)
    return held.scores.reindex(columns=[key.removeprefix("score.")]).set_axis(["value"], axis=1).assign(one=1.0)


def _gap(a: pd.DataFrame, b: pd.DataFrame, top: str = "value", below: str = "one", digits: int = 2) -> str:
    return written(stats.difference(a, b, top, below), digits)


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """The table's figures: speed, the law's distance and quality, a row a method."""

    def draw(group: Measured) -> Figure | None:
        names = _names(group)
        if "SJD" not in names:
            return None
        keys = {
            "scr": SCR,
            "speedup": "wall speed-up over AR",
            "total_variation": "total variation, worst enumerated model",
        }
        keys |= {key: QUALITIES[key] for key in _qualities(group)}
        drawn, panels = side_by_side(len(keys), group, "SJD++ beyond the paper: exact reuse")
        for axes, (key, title) in zip(panels, keys.items(), strict=True):
            for place, (name, cell) in enumerate(names.items()):
                _mark(axes, group.row(cell), key, place, name)
            axes.set(xlabel=title, ylim=(len(names) - 0.5, -0.5), yticks=[])
            axes.grid(color="0.94", zorder=0)
        legend(drawn, panels[0])
        return drawn

    return save_each(groups, outdir, "exact", draw)


def _mark(axes: Axes, row: pd.Series[Any], key: str, place: int, name: str) -> None:
    """A value with its interval; nothing where it was not measured."""
    value = row.get(key)
    if value is None or pd.isna(value):
        return
    ends = [row.get(f"{key}_{end}") for end in ("low", "high")]
    low, high = (float(value) if end is None or pd.isna(end) else float(end) for end in ends)
    bar = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar(value, place, xerr=bar, color=COLOURS[place], marker="o", ms=5, capsize=3, label=name)
