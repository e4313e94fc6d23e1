"""The figures of a page, as data and layout for plotly; each has a table of the same numbers.

Colours of text, grid and background belong to the page's theme, and its script fills them in. Text of a figure is
escaped, because plotly reads tags in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.record.metrics import acceptance_by_depth, owners
from stridebench.reports.html.headline import setting_of
from stridebench.reports.html.text import figure_of, for_plotly, plain_list
from stridebench.reports.pareto import Panel, panels
from stridebench.reports.quality import lower_is_better
from stridebench.reports.tables import GROUP
from stridebench.reports.text_table import interval

if TYPE_CHECKING:
    from stridebench.reports.finished_cell import FinishedCell

PALETTE = ("#2f7fc1", "#d9822b", "#1f9e77", "#9d6bc9", "#c0568e", "#8a8626", "#2a9fb2", "#a1674a")
GREY, RED = "#7b8494", "#d33f49"
QUIET = {"hoverinfo": "skip"}
PHASES = {"draft": "#d9822b", "target": "#2f7fc1", "verify": "#1f9e77", "host": "#7b8494"}
SYMBOLS = {"exact": "circle", "approximate": "circle-open", "broken": "x", "unverified": "square-open"}
LONG = 26
"""Characters of a name from which on each name of a legend has a separate line."""
BASE = "speed-up over the baseline"
FEWEST = 12
"""Passes of a number of rows that a point of the line of window costs needs."""

Spec = Mapping[str, object]


@dataclass(frozen=True)
class Chart:
    """A figure and its numbers.

    Args:
        key: unique on its page.
        title, caption: text.
        spec: data and layout for plotly.
        columns, rows: the same numbers as a table of text.
        height: in CSS pixels.
    """

    key: str
    title: str
    caption: str
    spec: Spec
    columns: tuple[str, ...]
    rows: list[list[str]]
    height: int = 420


@dataclass
class TargetPasses:
    """Target passes of a group of cells: the rows of each and its time, of decodes that had the pass to themselves."""

    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    times: list[npt.NDArray[np.float64]] = field(default_factory=list)

    def add(self, steps: pd.DataFrame) -> None:
        """Take the counted steps of a cell that made one pass."""
        alone = (steps["served"] if "served" in steps else steps["nfe"]) == 1
        single = ((steps["nfe"] == 1) & ~steps["warmup"].astype(bool) & alone).to_numpy()
        self.rows.append(steps["rows"].to_numpy()[single])
        self.times.append(steps["target_ns"].to_numpy(dtype=float)[single])

    def costs(self) -> dict[int, float]:
        """Median time of a pass by its rows, over that of one row; empty if one row was never timed."""
        if not self.rows:
            return {}
        frame = pd.DataFrame({"rows": np.concatenate(self.rows), "time": np.concatenate(self.times)})
        by_rows = frame.groupby("rows")["time"].agg(["median", "size"])
        times = by_rows.loc[by_rows["size"] >= FEWEST, "median"]
        one = times.get(1)
        return {} if not one else {int(str(rows)): float(time / one) for rows, time in times.items()}


def pareto_charts(frame: pd.DataFrame) -> Iterator[Chart]:
    """Yield a chart of speed-up against quality for each group of cells with a swept approximate method."""
    for index, panel in enumerate(panels(frame)):
        colours = _colours(panel.cells)
        data = [_point(row, "speedup", panel.quality, colours[i]) for i, (_, row) in enumerate(panel.cells.iterrows())]
        y_axis = {"title": {"text": for_plotly(panel.ylabel)}}
        if lower_is_better(panel.quality):
            y_axis["autorange"] = "reversed"  # type: ignore[assignment]  # better is up
        elif panel.cells[panel.quality].nunique() == 1:  # plotly would show as many below as above, up to 2 for shares
            only = float(panel.cells[panel.quality].iloc[0])
            y_axis["range"] = [only - 0.5, only + 0.05]  # type: ignore[assignment]
        layout = {"xaxis": {"title": {"text": BASE}}, "yaxis": y_axis, "shapes": _pareto_shapes(panel)}
        caption = (
            "Median speed-up over the baseline, with 95 % intervals. Filled: exact. Open: approximate. "
            "Cross: broken. Square: unverified. Diamond: the baseline. Up and to the right is better."
        )
        if panel.floor is not None:
            caption += " Band: the baseline against itself with other seeds."
        columns = ("cell", "verdict", "speed-up", panel.ylabel)
        rows = [
            [str(row["label"]), str(row["verdict"]), interval(row, "speedup"), interval(row, panel.quality, 3)]
            for _, row in panel.cells.iterrows()
        ]
        title = f"{panel.title}: {panel.ylabel}"
        yield Chart(f"pareto-{index}", title, caption, spec_of(data, layout), columns, rows, _height(data))


def speed_charts(frame: pd.DataFrame, passes: dict[tuple[Any, ...], TargetPasses]) -> Iterator[Chart]:
    """Yield a chart of speed-up against SCR for each group of comparable cells, with the line of its window costs.

    Args:
        frame: the summary.
        passes: of each group, by the values of `stridebench.reports.tables.GROUP`.
    """
    done = frame[(frame["status"] == "done") & frame.get("speedup", pd.Series(np.nan, frame.index)).notna()]
    groups = done.groupby(list(GROUP), sort=False, dropna=False)
    for index, (names, group) in enumerate(groups):
        cells = group[group["role"] == "method"].reset_index(drop=True)
        if cells.empty:
            continue
        colours = _colours(cells)
        data = [_point(row, "scr", "speedup", colours[i]) for i, (_, row) in enumerate(cells.iterrows())]
        costs = passes[tuple(names)].costs() if tuple(names) in passes else {}
        caption = "Dotted: passes of any width cost the same, so that the speed-up is SCR."
        if len(costs) > 1:
            data.append(_ceiling(costs))
            caption += (
                " Line: w / c(w), the most that passes of w rows can give on this machine. c(w) is the median time of "
                "a target pass of w rows over that of one row, measured in this run. The part missing below the line "
                "is rejected drafts, drafting and overhead."
            )
        right, top = 1.25 * _most(cells, "scr"), 1.25 * max(_most(cells, "speedup"), 1.0)
        layout = {
            "xaxis": {"title": {"text": "SCR, output tokens a target pass"}, "range": [0, right]},
            "yaxis": {"title": {"text": BASE}, "range": [0, max(top, min(right, 2 * top))]},
            "shapes": [_line(0, 0, 2 * right, 2 * right, "dot")],
        }
        rows = [[str(row["label"]), interval(row, "scr"), interval(row, "speedup")] for _, row in cells.iterrows()]
        rows += [[f"line at w = {w}", f"{w}", f"{w / cost:.2f}"] for w, cost in costs.items()]
        title = setting_of(group.iloc[0])
        spec, columns = spec_of(data, layout), ("cell", "SCR", "speed-up")
        yield Chart(f"speed-{index}", title, caption, spec, columns, rows, _height(data))


def cell_charts(finished: FinishedCell, base: FinishedCell | None, row: pd.Series[Any]) -> Iterator[Chart]:
    """Yield the charts of a cell: acceptance by position, tokens a step, times, and the predicted speed-up."""
    counted = finished.steps
    if finished.totals.empty:
        return
    if acceptance_by_depth(counted):
        yield _acceptance(counted)
    yield _emitted(counted)
    yield _times(finished, base)
    if pd.notna(row.get("predicted")) and row["role"] == "method":
        yield _predicted(row)


def evidence_chart(tokens: Sequence[int], log_e: Sequence[float], refuted: float) -> Chart:
    """Return the e-value after each audited output.

    Args:
        tokens: audited so far.
        log_e: natural logarithm of the e-value there.
        refuted: e-value from which on the sampler is refuted.
    """
    in_tens = [value / np.log(10) for value in log_e]
    data = [bar_or_line(list(tokens), plain_list(in_tens, 4), "e-value", PALETTE[0], "scatter")]
    layout = {
        "xaxis": {"title": {"text": "audited tokens"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "log₁₀ of the e-value"}},
        "shapes": [_line(0, float(np.log10(refuted)), max(tokens, default=1), float(np.log10(refuted)), "dot")],
    }
    caption = (
        "Evidence against tokens drawn from the target's distribution, output by output. Below 0 the bets have lost. "
        f"From {refuted:,.0f} on (dotted) a cell is broken. A correct one gets there in at most one audit of "
        f"{refuted:,.0f}."
    )
    rows = [[str(count), figure_of(power, 2)] for count, power in zip(tokens, in_tens, strict=True)]
    return Chart("evidence", "Evidence", caption, spec_of(data, layout), ("tokens", "log₁₀ e"), rows, 300)


def _acceptance(counted: pd.DataFrame) -> Chart:
    depths = acceptance_by_depth(counted)
    x = [depth.depth for depth in depths]
    data = [
        bar_or_line(x, plain_list((depth.marginal for depth in depths), 5), "of all steps", PALETTE[0]),
        bar_or_line(
            x, plain_list((depth.conditional for depth in depths), 5), "of steps that got there", PALETTE[1], "scatter"
        ),
    ]
    layout = {
        "xaxis": {"title": {"text": "position in the draft"}, "dtick": max(1, len(x) // 12)},
        "yaxis": {"title": {"text": "share accepted"}, "range": [0, 1.02], "tickformat": ".0%"},
        "legend": {"orientation": "h", "y": 1.14},
    }
    caption = (
        "Bars: share of all steps that accepted a token at this position. Line: the same of the steps that accepted "
        "one at the position before and drafted one here."
    )
    rows = [[str(d.depth), figure_of(d.marginal, 3), figure_of(d.conditional, 3)] for d in depths]
    columns = ("position", "of all steps", "of steps that got there")
    return Chart("acceptance", "Acceptance by position", caption, spec_of(data, layout), columns, rows, 320)


def _emitted(counted: pd.DataFrame) -> Chart:
    counts = counted["emitted"].value_counts().sort_index()
    x, shares = [int(str(tokens)) for tokens in counts.index], (counts / counts.sum()).tolist()
    data = [bar_or_line(x, plain_list(shares, 5), "steps", PALETTE[0])]
    layout = {
        "xaxis": {"title": {"text": "tokens of a step"}, "dtick": max(1, (max(x, default=1) - 1) // 12)},
        "yaxis": {"title": {"text": "share of steps"}, "tickformat": ".0%"},
    }
    rows = [[str(tokens), str(n), f"{share:.1%}"] for tokens, n, share in zip(x, counts, shares, strict=True)]
    caption = "How many tokens the steps emitted."
    return Chart("emitted", "Tokens a step", caption, spec_of(data, layout), ("tokens", "steps", "share"), rows, 320)


def _times(finished: FinishedCell, base: FinishedCell | None) -> Chart:
    """Return the phases of an output token's time, and the baseline's on the same prompts."""
    pairs = [("this cell", finished, finished.totals)]
    if base is not None and base.cell.name != finished.cell.name:
        same = base.totals.index.equals(finished.totals.index)
        shared = base.totals if same else base.totals[base.totals.index.isin(finished.totals.index)]
        pairs.append(("the baseline", base, shared))
    names = [name for name, _, _ in pairs]
    by_cell = [_phases_ms(cell, totals) for _, cell, totals in pairs]
    times = {phase: [phases[phase] for phases in by_cell] for phase in PHASES}
    data = [
        {**bar_or_line(plain_list(values, 5), names, phase, PHASES[phase]), "orientation": "h"}
        for phase, values in times.items()
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms an output token"}},
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "legend": {"orientation": "h", "y": 1.22, "traceorder": "normal"},
    }
    rows = [[name, *(figure_of(times[phase][i], 3) for phase in PHASES)] for i, name in enumerate(names)]
    caption = "Time in drafter passes, in target passes, from the target's pass to the acceptance, and the rest."
    columns = ("", *PHASES)
    return Chart(
        "times", "Where the time goes", caption, spec_of(data, layout), columns, rows, 90 + 75 * len(names) + 60
    )


def _phases_ms(finished: FinishedCell, totals: pd.DataFrame) -> dict[str, float]:
    """Return milliseconds of each phase over the outputs of ``totals``, by output token."""
    own = owners(finished.steps, totals.index) >= 0
    tokens = max(1.0, float(totals["output"].sum()))
    return {phase: float(finished.steps[f"{phase}_ns"].to_numpy()[own].sum()) / 1e6 / tokens for phase in PHASES}


def _predicted(row: pd.Series[Any]) -> Chart:
    measured = {
        "x": [float(row["speedup"])],
        "y": ["measured"],
        "error_x": _error(row, "speedup"),
        "mode": "markers",
        "marker": {"color": PALETTE[0], "size": 11},
        "hovertemplate": "%{x:.3f}<extra>measured</extra>",
    }
    predicted = {
        "x": [float(row["predicted"])],
        "y": ["predicted"],
        "mode": "markers",
        "marker": {"color": PALETTE[1], "size": 11, "symbol": "diamond"},
        "hovertemplate": "%{x:.3f}<extra>predicted</extra>",
    }
    layout = {
        "xaxis": {"title": {"text": BASE}},
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "shapes": [{**_line(1, 0, 1, 1, "dot"), "yref": "paper"}],
        "showlegend": False,
    }
    rows = [["measured", interval(row, "speedup")], ["predicted", figure_of(row["predicted"])]]
    caption = "Predicted: tau times the mean step of the baseline over the mean step of this cell. Dotted: no gain."
    columns = ("", "speed-up")
    title = "Predicted against measured"
    return Chart("predicted", title, caption, spec_of([measured, predicted], layout), columns, rows, 225)


def _point(row: pd.Series[Any], x: str, y: str, colour: str) -> Spec:
    """Return one cell as a marker with intervals, its name in the legend, and a box to hover."""
    baseline = row["role"] == "baseline"
    lines = [
        f"<b>{for_plotly(str(row['label']))}</b>",
        for_plotly(str(row["verdict"])),
        f"speed-up {for_plotly(interval(row, 'speedup'))}",
        f"SCR {for_plotly(interval(row, 'scr'))}",
    ]
    if y != "speedup":
        lines.append(f"{for_plotly(y.partition('.')[2] or y)} {for_plotly(interval(row, y, 3))}")
    return {
        "x": [float(row[x])],
        "y": [float(row[y])],
        "error_x": _error(row, x),
        "error_y": _error(row, y),
        "mode": "markers",
        "marker": {
            "color": colour,
            "size": 10,
            "symbol": "diamond" if baseline else SYMBOLS.get(str(row["verdict"]), "square-open"),
            "line": {"width": 2, "color": colour},
        },
        "hovertext": "<br>".join(lines),
        "hoverinfo": "text",
        "name": for_plotly(str(row["label"])),
    }


def _error(row: pd.Series[Any], key: str) -> Spec:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    if low is None or high is None or pd.isna(low):
        return {"visible": False}
    above, below = max(0.0, float(high) - float(row[key])), max(0.0, float(row[key]) - float(low))
    return {"type": "data", "array": [above], "arrayminus": [below], "thickness": 1, "width": 0}


def _ceiling(costs: dict[int, float]) -> Spec:
    return {
        "x": list(costs),
        "y": [round(rows / cost, 4) for rows, cost in costs.items()],
        "mode": "lines+markers",
        "line": {"color": GREY, "width": 1.5},
        "marker": {"color": GREY, "size": 5},
        "hovertemplate": "%{x} rows a pass: at most %{y:.2f}<extra></extra>",
        "name": "window cost",
    }


def _pareto_shapes(panel: Panel) -> list[Spec]:
    shapes: list[Spec] = [{**_line(1, 0, 1, 1, "solid"), "yref": "paper", "layer": "below"}]
    key = f"{panel.quality}_low"
    if panel.floor is not None and pd.notna(panel.floor.get(key)):
        ends = {"y0": float(panel.floor[key]), "y1": float(panel.floor[f"{panel.quality}_high"])}
        look = {"fillcolor": GREY, "opacity": 0.16, "line": {"width": 0}, "layer": "below"}
        shapes.append({"type": "rect", "xref": "paper", "x0": 0, "x1": 1, **ends, **look})
    return shapes


def _line(x0: float, y0: float, x1: float, y1: float, dash: str) -> Spec:
    return {"type": "line", "x0": x0, "y0": y0, "x1": x1, "y1": y1, "line": {"color": GREY, "width": 1, "dash": dash}}


def bar_or_line(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, kind: str = "bar") -> Spec:
    """Return bars, or with ``kind`` scatter a line with its points."""
    line = {"mode": "lines+markers", "line": {"color": colour, "width": 2}} if kind == "scatter" else {}
    return {"type": kind, "x": list(x), "y": list(y), "name": name, "marker": {"color": colour}, **line}


def spec_of(data: Sequence[Spec], layout: Spec) -> Spec:
    """Return data and layout, with a legend below if there are several names."""
    names = [trace for trace in data if trace.get("name")]
    width = 0.48 if _columns(data) == 2 else 1
    below = {
        "orientation": "h",
        "y": -0.18,
        "yanchor": "top",
        "x": 0,
        "entrywidth": width,
        "entrywidthmode": "fraction",
    }
    return {"data": data, "layout": {"showlegend": len(names) > 1, "legend": below, **layout}}


def _colours(cells: pd.DataFrame) -> list[str]:
    """Return a colour a cell. Red is kept for broken cells, grey for the baseline."""
    colours: list[str] = []
    for _, row in cells.iterrows():
        others = [colour for colour in colours if colour not in (GREY, RED)]
        free = PALETTE[len(others) % len(PALETTE)]
        colours.append(GREY if row["role"] == "baseline" else RED if row["verdict"] == "broken" else free)
    return colours


def _most(cells: pd.DataFrame, key: str) -> float:
    """Return the largest estimate, or the upper bound if it is at most twice that."""
    most = float(cells[key].max())
    high = cells[f"{key}_high"].max() if f"{key}_high" in cells else most
    return most if pd.isna(high) else min(max(most, float(high)), 2 * most)


def _columns(data: Sequence[Spec]) -> int:
    """Return how many names stand in a line of the legend."""
    return 1 if any(len(str(trace.get("name", ""))) > LONG for trace in data) else 2


def _height(data: Sequence[Spec]) -> int:
    """Return the height of a figure with its legend."""
    return 380 + 19 * -(-len(data) // _columns(data))
