"""Rows of the figures of Cross-Regression: layers that an adapter changes, and Fig. 1 over model sizes.

Source: Abulkhanov et al., Cross-Regression, Fig. 1, Tables 16 and 17.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.cross_regression.facts import METHOD, beside, layers_of, options, parameters
from stridebench.reports.papers.engine import with_options
from stridebench.reports.papers.measured import MeasuredRun, fits
from stridebench.reports.papers.paper_files import papers, printed

SERIES = ("GSM8K tau", "HumanEval tau", "MT-bench tau")
"""Columns of Table 17."""


@source("cross_regression_layers")
def layers(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Table 16: for each layout, tokens a step of the first cell near each printed range of layers."""
    table = printed("cross_regression_table16").rows
    for group in run.groups:
        rows = fits(with_options(group.rows, options), method=METHOD, mode="std", beta=0.0)
        if not any(params.get("layers") for params in rows["options"]):
            continue
        cells, values = [], []
        for layout, column in (("sequential", "tau_Seq"), ("joint", "tau_Joint")):
            of_layout = fits(rows, layout=layout)
            for place, (label, value) in enumerate(zip(table["Layer Range"], table[column], strict=True)):
                wanted = layers_of(label)
                near = beside(of_layout, wanted) if wanted else None
                cell = fits(of_layout, layers=near).iloc[:1] if near or not wanted else of_layout.iloc[:0]
                shown = cell if len(cell) else pd.DataFrame({"tau": [math.nan]})
                cells.append(shown.assign(layout=layout, layers=label.removeprefix("Layers "), line="measured"))
                values.append(("printed, Llama-2-7B-chat", layout, place, float(value)))
        frame = pd.DataFrame(values, columns=["label", "key", "x", "y"])
        yield ChartData(group.title, pd.concat(cells), printed=frame)


@source("cross_regression_sizes")
def scaling(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 1: the lossless joint decoding by parameters, with Table 17's values and the two in the text.

    The paper prints no values of the figure.
    """
    if not run.groups:
        return
    rows = with_options(pd.concat([group.rows for group in run.groups]), options)
    rows = fits(rows, **papers()[METHOD].named("Lossless"))
    rows = rows[~rows[["backbone", "task", "temperature", "dtype"]].duplicated()]
    sizes = [parameters(run.store, str(name)) or math.nan for name in rows["backbone"]]
    rows = rows.assign(size=sizes).dropna(subset=["size"]).sort_values(["task", "temperature", "dtype", "size"])
    lines = [f"{row['task']} {row['dtype']}, T = {row['temperature']:g}" for _, row in rows.iterrows()]
    marks = rows["backbone"].where(~rows["backbone"].duplicated(), "")
    yield ChartData("", rows.copy().assign(line=lines, mark=marks), printed=_printed_sizes(run))


def _printed_sizes(run: MeasuredRun) -> pd.DataFrame:
    table = printed("cross_regression_table17")
    points = []
    for column in SERIES:
        for _, row in table.rows[table.rows["Temperature"] == "0"].iterrows():
            size = parameters(run.store, table.paper.preset(f"{row['Model Series']} {row['Size']}"))
            label = f"printed, {column.removesuffix(' tau')}, T = 0"
            points += [(label, "scr", size, float(row[column]))] if size else []
    for _, row in printed("cross_regression_fig1").rows.iterrows():
        size = float(row["Size"].removesuffix("B")) * 1e9
        points.append(("said of Fig. 1, GSM8K", "scr", size, float(row["GSM8K speed-up"])))
    return pd.DataFrame(points, columns=["label", "key", "x", "y"])
