"""Masked diffusion's curve: what fewer passes cost in quality, against the autoregressive twin's decoding.

Beside the task's score stand generative perplexity and distinct-n, which only together tell a decoder that writes
likely texts from one that writes the same text again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.record import stats
from reports.papers.drawing import COLOURS, curve, legend, save_each, side_by_side
from reports.papers.measured import Measured, shown, written
from reports.plot_style import DASHES
from reports.summary import FinishedCell
from reports.text_table import UNMEASURED, Column, TextTable, number

if TYPE_CHECKING:
    from harness.record.store import Store

SCORES = ("score.solved", "score.pass@1")
"""What a curve's quality may be; the first that both models have is shown."""
PERPLEXITY = "set.generative_perplexity"
DISTINCT = "set.distinct_"
PASSES = "target passes an output"
NOTES = (
    "masked model and twin: the same data, tokens and size; the twin's rows come last, autoregressive decoding first",
    "passes: of the target, an output, the twin's prefill left out; speed-up: median over (prompt, seed) pairs of the "
    "twin's autoregressive time of a whole output, prefill and all, over this cell's",
    "less the twin's: difference of the means, paired by prompt and seed",
    "perplexity: exp of nats a token under the judge that the task names, lower where texts are likelier, at any "
    "temperature; distinct-n: different n-grams over all n-grams of the cell, to be compared at one n of outputs",
)


@dataclass(frozen=True)
class Pair:
    """A masked model's cells and its twin's, of one temperature and task.

    Args:
        score: key of the quality, in both.
    """

    masked: Measured
    twin: Measured
    score: str

    @property
    def reference(self) -> pd.Series[Any]:
        """The twin's autoregressive decoding."""
        return self.twin.rows[self.twin.rows["role"] == "baseline"].iloc[0]

    @property
    def name(self) -> str:
        """Of the score."""
        return self.score.removeprefix("score.")


def pairs(groups: Sequence[Measured]) -> Iterator[Pair]:
    """Every group whose baseline is masked diffusion, with the one of the same setting whose baseline is not."""
    masked = [group for group in groups if _baseline(group) == "masked_diffusion"]
    causal = [group for group in groups if _baseline(group) == "autoregressive"]
    for group in masked:
        for twin in causal:
            same = (group.task, group.temperature, group.dtype) == (twin.task, twin.temperature, twin.dtype)
            known = [key for key in SCORES if _measured(group, key) and _measured(twin, key)]
            if same and known:
                yield Pair(group, twin, known[0])


def sheet(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """A table for each pair: a row an order and number of steps, then the twin's rows."""
    return [_sheet(store, pair) for pair in pairs(groups)]


def _sheet(store: Store, pair: Pair) -> TextTable:
    distinct = _distinct(pair)
    columns = (
        Column("label", "cell", rank=0),
        Column("passes", "passes", 1, 2),
        Column("speedup", "speed-up over the twin", 2, 3),
        Column("score", pair.name, 3, 1),
        Column("less", f"{pair.name} less the twin's", 3, 4),
        Column("perplexity", "perplexity", 3, 5),
        *(Column(key, key.removeprefix("set.").replace("_", "-"), 3, 6) for key in distinct),
    )
    base = FinishedCell.of(store.cell(str(pair.reference.name)))
    rows = []
    for group, mark in ((pair.masked, ""), (pair.twin, "twin: ")):
        for name, row in group.rows.iterrows():
            held = FinishedCell.of(store.cell(str(name)))
            apart = stats.difference(_scores(base, pair.name), _scores(held, pair.name), "value", "one")
            own = name == pair.reference.name
            rows.append(
                [
                    f"{mark}{row['label']}",
                    shown(row, ("passes",), 1),
                    "1" if own else written(stats.median_ratio(_token_s(base), _token_s(held))),
                    shown(row, (pair.score,), 3),
                    "-" if own else written(apart, 3) if apart else UNMEASURED,
                    shown(row, (PERPLEXITY,), 3),
                    *(number(row.get(key), 3) for key in distinct),
                ]
            )
    return TextTable(
        f"Speed and quality: {pair.masked.title}, against {pair.twin.backbone}", columns, rows, list(NOTES)
    )


def figure(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Quality against passes and against speed-up, perplexity and distinct-n against passes; a line an order."""
    found = {id(pair.masked): pair for pair in pairs(groups)}

    def draw(group: Measured) -> Figure | None:
        return _draw(store, found[id(group)]) if id(group) in found else None

    return save_each(groups, outdir, "step-counts", draw)


def _draw(store: Store, pair: Pair) -> Figure:
    rows = pair.masked.rows[pair.masked.rows["role"] == "method"]
    base = _token_s(FinishedCell.of(store.cell(str(pair.reference.name))))
    ratios = [stats.median_ratio(base, _token_s(FinishedCell.of(store.cell(str(name))))) for name in rows.index]
    rows = rows.assign(
        line=[_line(one) for one in rows["options"]], faster=[r.estimate if r else math.nan for r in ratios]
    )
    keys = [(pair.score, "passes", PASSES), (pair.score, "faster", f"speed-up over {pair.twin.backbone}, AR")]
    more = [PERPLEXITY, *_distinct(pair)[len(_distinct(pair)) // 2 :][:1]]
    keys += [(key, "passes", PASSES) for key in more if _measured(pair.masked, key)]
    drawn, panels = side_by_side(len(keys), pair.masked, "Masked diffusion: speed and quality by number of steps")
    for axes, (key, x, title) in zip(panels, keys, strict=True):
        for colour, (line, held) in zip(COLOURS, rows.groupby("line", sort=False), strict=False):
            ordered = held.sort_values(x, kind="stable")
            curve(axes, ordered[x], ordered, key, str(line), colour)
        _twin(axes, pair, key, float(pair.reference["passes"]) if x == "passes" else 1.0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if key == PERPLEXITY else "linear")
        axes.set(xlabel=title, ylabel=key.partition(".")[2].replace("_", " "))
    legend(drawn, panels[0])
    return drawn


def _twin(axes: Axes, pair: Pair, key: str, x: float) -> None:
    """The twin's autoregressive decoding: a point, a line across, and its interval."""
    row = pair.reference
    axes.axhline(float(row[key]), color="0.4", ls=DASHES, lw=1, zorder=1)
    axes.plot(x, float(row[key]), "D", color="0.25", ms=6, zorder=4, label=f"{pair.twin.backbone}, AR")
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if pd.notna(low) and pd.notna(high):
        axes.axhspan(float(low), float(high), color="0.93", zorder=0)


def _line(options: dict[str, Any]) -> str:
    """What a line's cells share: all but the number of steps, at their defaults unsaid."""
    more = [f"{key}={options[key]:g}" for key in ("block", "alg_temp") if options.get(key)]
    return ", ".join([str(options["order"]), *more])


def _baseline(group: Measured) -> str:
    rows = group.rows[group.rows["role"] == "baseline"]
    return str(rows["method"].iloc[0]) if len(rows) else ""


def _measured(group: Measured, key: str) -> bool:
    return key in group.rows and bool(group.rows[key].notna().all())


def _distinct(pair: Pair) -> list[str]:
    """Keys of distinct-n, by n."""
    found = [str(key) for key in pair.masked.rows if str(key).removeprefix(DISTINCT).isdecimal()]
    return sorted(found, key=lambda key: int(key.removeprefix(DISTINCT)))


def _scores(held: FinishedCell, name: str) -> pd.DataFrame:
    return pd.DataFrame({"value": held.scores[name], "one": 1.0})


def _token_s(held: FinishedCell) -> pd.Series[float]:
    """Seconds an output token by sample, prefill and all."""
    frame = held.totals
    return (frame["wall_s"] + frame["prefill_ms"].fillna(0) / 1e3) / frame["output"]
