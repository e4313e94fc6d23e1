"""MuLo-SD's speed-up predicted from passes, and the time of each stage of a picture.

Symbols: T_p cells of a picture, T_q the drafter's, r factor between them, a share of the cells that keep their drafts.
Source: MuLo-SD, supplement 7, eq. 10 and Fig. 7.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.figure import Figure

from stridebench.harness.record.cell_files import SealedCell
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.papers.drawing import COLOURS, figure, legend, sheet, side_by_side
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, by_group, counted, plain
from stridebench.reports.papers.mulo_sd_pareto import SweepLine, option, radii, ratios, timed
from stridebench.reports.papers.paper_files import printed, published
from stridebench.reports.text_table import UNMEASURED, TextTable, measured_text, number

STEPS = ("1 drafter", "2 up-sampling", "3 target pass", "4-5 judging", "6 redraws", "7 down-sampling", "rest")
"""Steps of the paper's Fig. 2; the rest is distributions, commits and work of the host."""


@dataclass(frozen=True)
class Predicted:
    """Speed-ups over one target pass a cell, if passes of drafter and target take the same time.

    Args:
        acceptance: a, after dilation.
        eq10: T_p / ((1 - a) T_p + T_q), as published, without the passes that judge bands.
        corrected: with one such pass a band.
        counted: T_p over the actual passes. It exceeds ``corrected``, because the first redrawn cell of a band needs no
            pass of its own, and cells drawn in parallel share a pass.
    """

    acceptance: float
    eq10: float
    corrected: float
    counted: float


def predicted(frame: pd.DataFrame, factor: int) -> Predicted | None:
    """Predict speed-ups from all rows of ``metrics.totals`` of a method whose steps fill bands; None without a drafter.

    Ends of rows are not cells: they count neither as tokens nor as passes. T_q is the number of small cells, T_p / r^2.
    A drafter that draws them in parallel makes fewer passes; only ``counted`` takes this into account.
    """
    total = frame[["emitted", "forced", "resampled", "draft_nfe", "nfe", "steps"]].sum().astype(float)
    if not total["draft_nfe"]:
        return None
    tokens = float(total["emitted"] - total["forced"])
    passes = float(total["resampled"]) + tokens / factor**2
    return Predicted(
        acceptance=1 - float(total["resampled"]) / tokens,
        eq10=tokens / passes,
        corrected=tokens / (passes + float(total["steps"])),
        counted=tokens / float(total["nfe"] + total["draft_nfe"]),
    )


@sheet("mulo_sd_eq10")
def speedups(run: MeasuredRun) -> list[TextTable]:
    """Compare eq. 10, its corrected form and counted passes with the wall speed-up, one row a cell of MuLo-SD."""
    lines = []
    for group, name in _cells(run):
        row = group.row(name)
        factor = int(row["options"].get("factor", published("mulo_sd")["factor"]))
        speedup = predicted(FinishedCell.of(run.store.cell(name)).totals, factor)
        if speedup:
            line = {
                "setting": str(row["label"]),
                "acceptance a": number(speedup.acceptance, 3),
                "eq. 10": number(speedup.eq10),
                "corrected": number(speedup.corrected),
                "counted": number(speedup.counted),
                "wall speed-up": measured_text(row, "speedup"),
            }
            lines.append((group, line))
    notes = [
        "a: share of cells that kept their draft, after dilation; eq. 10: T_p / ((1 - a) T_p + T_q), as published, "
        "with T_q = T_p / r^2: it knows no parallel decoding, so cells drawn side by side are counted one by one",
        "corrected: with one judging pass a band; counted: T_p over the passes made, of which the first redrawn cell "
        "of a band needs none and cells side by side share one; a drafter's pass counts as a target's in all three, "
        "and seconds are in the last column alone",
        "T_p are cells: the ends of rows are in none of the three, while AR, to which the wall is compared, makes a "
        "pass for each of them too",
    ]
    return by_group("MuLo-SD, supplement, eq. 10: speed-up over AR by passes", lines, notes)


def breakdown(cell: SealedCell) -> pd.Series[float] | None:
    """Return the mean seconds of a picture in each of STEPS, or None if the run stored no stages.

    The drafter's time of a step contains the samplers' (steps 2 and 7), which is subtracted here.
    """
    finished = FinishedCell.of(cell)
    if "stages" not in finished.samples or finished.samples.empty:
        return None
    spent = pd.DataFrame([json.loads(stages) for stages in finished.samples["stages"]], index=finished.samples.index)
    if not {"up", "score", "judge", "redraw"} <= set(spent):
        return None
    steps = cell.steps[~cell.steps["warmup"].astype(bool)]
    draft = steps.groupby(KEYS)["draft_ns"].sum().reindex(spent.index)
    spent = spent.reindex(columns=["up", "score", "judge", "redraw", "down"]).fillna(0.0)
    spent.insert(0, "drafter", draft - spent["up"] - spent["down"])
    means = spent.mean() / 1e9
    rest = max(0.0, float(finished.totals["wall_s"].mean() - means.sum()))
    return pd.Series([*means, rest], index=STEPS)


def _breakdowns(run: MeasuredRun) -> Iterator[tuple[CellGroup, str, pd.Series[float]]]:
    for group, name in _cells(run):
        seconds = breakdown(run.store.cell(name))
        if seconds is not None:
            yield group, name, seconds


@sheet("mulo_sd_fig7")
def stages(run: MeasuredRun) -> list[TextTable]:
    """Return Fig. 7 as a table: seconds of a picture and the share of each step."""
    lines = []
    for group, name, seconds in _breakdowns(run):
        line = {"setting": group.label(name), "all steps": number(seconds.sum(), 3)}
        line |= {step: f"{seconds[step]:.3f} ({seconds[step] / seconds.sum():.0%})" for step in STEPS}
        lines.append((group, line))
    notes = ["seconds of a picture, prefill not counted, and their share; steps as numbered in the paper's Fig. 2"]
    return by_group("MuLo-SD, supplement, Fig. 7: latency by step", lines, notes)


@figure("mulo_sd_fig7")
def latency(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 7: seconds of a picture by step, one bar a setting; AR is a line."""
    for group in run.groups:
        cells = {name: seconds for _, name, seconds in _breakdowns(MeasuredRun(run.store, [group]))}
        if not cells:
            continue
        drawn, (axes,) = side_by_side(1, "Fig. 7: latency by step", group.title)
        drawn.set_figheight(2.6 + 0.3 * len(cells))
        begin = [0.0] * len(cells)
        for step, colour in zip(STEPS, COLOURS, strict=False):
            widths = [float(seconds[step]) for seconds in cells.values()]
            axes.barh(range(len(cells)), widths, left=begin, color=colour, label=step)
            begin = [a + b for a, b in zip(begin, widths, strict=True)]
        for name in group.cells(role="baseline"):
            axes.axvline(
                FinishedCell.of(run.store.cell(name)).totals["wall_s"].mean(), color="0.3", lw=1, ls="--", label="AR"
            )
        axes.set_yticks(range(len(cells)), [group.label(name) for name in cells], fontsize=7)
        axes.set(xlabel="seconds of a picture, prefill not counted", ylim=(len(cells) - 0.5, -0.5))
        legend(drawn, axes)
        yield drawn


def _cells(run: MeasuredRun) -> list[tuple[CellGroup, str]]:
    """Return the cells of MuLo-SD, each with its group."""
    return [(group, name) for group in run.groups for name in group.cells("mulo_sd")]


# Numbers in MuLo-SD's text, compared with the run's; each has its place in the paper.


TAU, STRICT = "0.0001", "0.001"
"""The tau that the paper chooses, and the tau that it calls closest to the original."""


@dataclass(frozen=True)
class Swept:
    """The cells that a row is measured on.

    Args:
        line: MuLo-SD over tau as published, at the row's factor, with trained samplers, or None if it was not run.
        base: the autoregressive cell, or None if it was not run.
    """

    run: MeasuredRun
    group: CellGroup
    factor: int
    line: SweepLine | None
    base: str | None

    def cell(self, tau: str) -> SealedCell | None:
        """Return the cell at a tau."""
        name = self.line.cells.get(tau) if self.line else None
        return self.run.store.cell(name) if name else None


@sheet("mulo_sd_text")
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group with cells of MuLo-SD: what, printed, measured, where."""
    text = printed("mulo_sd_text")
    notes = [
        "measured: with trained samplers, cell by cell, radius 3, at tau = 1e-4 where none is said; [low, high] is "
        "over prompts; the paper's times are of an A100"
    ]
    for group in run.groups:
        if not group.cells("mulo_sd"):
            continue
        base, lines = next(iter(group.cells(role="baseline")), None), []
        for row in text.rows.to_dict("records"):
            name, _, factor = str(row["key"]).partition("_")
            swept = Swept(run, group, int(factor), _line(run, group, int(factor)), base)
            line = {"What": row["What"], "Printed": row["Printed"], "Measured": MEASURES[name](swept) or UNMEASURED}
            lines.append(line | {"Where": row["Where"], "Remarks": row["notes"]})
        title = f"MuLo-SD, the text: printed of {text.layout.model} | measured on {group.title}"
        for filled_table in plain(title, lines, notes):
            yield replace(
                filled_table,
                columns=tuple(replace(column, rank=min(column.rank, 3)) for column in filled_table.columns),
            )


def _line(run: MeasuredRun, group: CellGroup, factor: int) -> SweepLine | None:
    for line in radii(run, group):
        options = line.rows["options"].iloc[0]
        if (option(options, "factor"), option(options, "radius")) == (factor, published("mulo_sd")["radius"]):
            return line
    return None


def _overhead(swept: Swept) -> str | None:
    """Return the share of a picture's time without drafting and redrawing, and the share of the samplers."""
    cell = swept.cell(TAU)
    seconds = None if cell is None else breakdown(cell)
    if seconds is None:
        return None
    total, samplers = seconds.sum(), seconds["2 up-sampling"] + seconds["7 down-sampling"]
    rest = total - seconds["1 drafter"] - seconds["6 redraws"]
    return f"{rest / total:.1%}, of which the samplers {samplers / total:.1%}"


def _bound(swept: Swept) -> str | None:
    """Return the run's speed-up by eq. 10 and by the wall."""
    cell = swept.cell(TAU)
    speedups = None if cell is None else predicted(FinishedCell.of(cell).totals, swept.factor)
    if cell is None or speedups is None:
        return None
    wall = measured_text(swept.group.row(cell.name), "speedup")
    return f"eq. 10 {speedups.eq10:.2f} at a = {speedups.acceptance:.3f}, wall {wall}"


def _range(swept: Swept) -> str | None:
    """Return the least and the largest wall speed-up of the sweep."""
    if swept.line is None or not timed(swept.line.rows).any():
        return None
    speeds = swept.line.rows["speedup"].astype(float)
    return f"{speeds.min():.2f} - {speeds.max():.2f}"


def _slower(swept: Swept) -> str | None:
    """Return how many pictures at tau = 1e-3 took longer than AR's of the same prompt and seed."""
    cell = swept.cell(STRICT)
    speeds = ratios(swept.run.store.cell(swept.base), cell) if cell and swept.base else {}
    return f"{sum(speed < 1 for speed in speeds.values())} of {len(speeds)} pictures" if speeds else None


def _before(swept: Swept) -> str | None:
    """Return the mean seconds of opening and reading the prompt, of the autoregressive cell."""
    if swept.base is None:
        return None
    samples = counted(swept.run.store.cell(swept.base))
    return f"{float((samples['open_ns'] + samples['prefill_ns']).mean()) / 1e9:.3f}"


def _picture(swept: Swept) -> str | None:
    """Return the seconds of the autoregressive cell's pictures, and their tokens."""
    if swept.base is None:
        return None
    row = swept.group.row(swept.base)
    return f"{measured_text(row, 'seconds', digits=3)} of {row['tokens']:.0f} tokens"


MEASURES: dict[str, Callable[[Swept], str | None]] = {
    "overhead": _overhead,
    "bound": _bound,
    "range": _range,
    "slower": _slower,
    "before": _before,
    "picture": _picture,
}
"""Functions by the first word of a row's key; the last word is the factor."""
