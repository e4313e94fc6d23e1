"""Figs. 5 to 7 of XSpecMesh: heads, threshold, acceptance rules, and the test set by level.

The paper prints these as pictures; of their values it names the best of Fig. 5 alone (D = 4, delta = 0.5).
Symbols: D heads, delta threshold, K_a best tokens accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
from matplotlib.figure import Figure

from stridebench.harness.record.run_notes import condition_file
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.meshes import cloud, draw
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import figure
from stridebench.reports.papers.measured import MeasuredRun, decoded, fits
from stridebench.reports.papers.paper_files import published
from stridebench.reports.papers.xspecmesh_facts import Setting, settings

if TYPE_CHECKING:
    import pandas as pd


SHOWN = 4
"""Shapes of each level on Fig. 7."""


@source("xspecmesh_heads")
def heads(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 5a: the swept row by D; D = 0 is the backbone alone."""
    for setting in settings(run):
        rows = sweep(setting, "levels")
        if len(rows) > 1:
            rows = rows.assign(x=rows["drafts"]).sort_values("x")
            base = setting.find(setting.alone)
            alone = [] if base is None else [setting.rows.loc[[base]].assign(x=0)]
            yield _data(setting, pd.concat([*alone, rows]).assign(line="measured"))


@source("xspecmesh_thresholds")
def thresholds(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 5b: the swept row by delta, and the backbone alone."""
    for setting in settings(run):
        yield _data(setting, sweep(setting, "delta").assign(line="measured"), across=True)


@source("xspecmesh_rules")
def rules(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 6: the swept row by SCR, a line for thresholds and one for the K_a best tokens."""
    for setting in settings(run):
        swept = {
            "p > delta": sweep(setting, "delta"),
            "among the K_a best": sweep(setting, "accept_top", acceptance="top"),
        }
        if not any(rows.empty for rows in swept.values()):
            rows = pd.concat([rows.assign(line=name) for name, rows in swept.items()])
            marks = [f"{x:g}" for x in rows["x"]]
            yield _data(setting, rows.assign(mark=marks, lost=rows["n_failed"] / rows["n_run"]), across=True)


def _data(setting: Setting, rows: pd.DataFrame, across: bool = False) -> ChartData:
    row = setting.row(setting.find(setting.alone)) if across else None
    base = {} if row is None else {"the backbone alone": row.drop("scr")}
    return ChartData(setting.title, rows, across=base, fields={"swept": setting.swept})


@figure("xspecmesh_fig7")
def levels(run: MeasuredRun) -> Iterator[Figure]:
    """Fig. 7: the points of the first shapes of each level, as models were given them."""
    for setting in settings(run):
        base = setting.find("A")
        if base is None:
            continue
        samples = run.store.cell(base).samples.drop_duplicates("prompt").sort_values("category", kind="stable")
        shapes: dict[str, list[Path]] = {}
        for prompt, level in zip(samples["prompt"], samples["category"], strict=True):
            file = condition_file(run.store.path, base, str(prompt))
            if level and file.is_file():
                shapes.setdefault(str(level), []).append(file)
        if shapes:
            yield _clouds(setting, {level: files[:SHOWN] for level, files in shapes.items()})


def _clouds(setting: Setting, shapes: Mapping[str, Sequence[Path]]) -> Figure:
    drawn = Figure(figsize=(1.9 * SHOWN, 1.9 * len(shapes) + 0.4), dpi=130, layout="constrained")
    drawn.suptitle(f"Fig. 7: test shapes by level, as points | {setting.title}", fontsize=9)
    for row, (level, files) in enumerate(shapes.items()):
        for column, file in enumerate(files):
            axes = drawn.add_subplot(len(shapes), SHOWN, row * SHOWN + column + 1, projection="3d")
            cloud(axes, file)
            axes.set_title(level, fontsize=7)
    return drawn


def sweep(setting: Setting, option: str, **rest: Any) -> pd.DataFrame:
    """Cells of the swept row as published (or with ``rest``) but for one option, in the order of its value ``x``."""
    role = setting.roles.get(setting.swept)
    if role is None:
        return setting.rows.iloc[:0].assign(x=[])
    selection = {"method": "multi_head", **published("multi_head"), **role, **rest}
    selection.pop(option, None)
    rows = fits(setting.rows, **selection)
    return rows.assign(x=[options[option] for options in rows["options"]]).sort_values("x")


# XSpecMesh's Figs. 4, 8 and 9: points, the backbone's mesh and the method's side by side, with wireframe.
# A sheet shows the first shapes of each level, not chosen ones.


OF_LEVEL = 2
"""Number of shapes of each level."""
COLUMNS = {"rival": "truncated context", "A": "backbone", "D": "heads alone (D)", "E": "with LoRA (E)"}
Columns = Mapping[str, FinishedCell]
"""Outputs by the title of their column."""
SIDE_IN = 2.7
EDGE = 0.5
"""Width of the wireframe, in points."""
ZOOM = 1.1
"""Enlarges a shape, so that less white surrounds it."""


@figure("xspecmesh_comparison")
def comparison(run: MeasuredRun) -> Iterator[Figure]:
    """Draw one row a shape and one column a row of Table 3; a mesh has Chamfer distance, faces and seconds."""
    for setting in settings(run):
        columns = {title: outputs for role, title in COLUMNS.items() if (outputs := setting.outputs(role))}
        if len(columns) > 1 and COLUMNS["A"] in columns:
            yield _figure(setting, columns, OF_LEVEL, "Figs. 4, 8, 9: the first shapes of each level")


@figure("xspecmesh_fig6-meshes")
def acceptance(run: MeasuredRun) -> Iterator[Figure]:
    """Draw Fig. 6 as in the paper: one shape of each level with every threshold and K_a, next to the backbone's."""
    for setting in settings(run):
        swept = {"delta = {:g}": sweep(setting, "delta"), "K_a = {:g}": sweep(setting, "accept_top", acceptance="top")}
        columns = {"backbone": outputs} if (outputs := setting.outputs("A")) else {}
        for title, rows in swept.items():
            for cell, row in rows.iterrows():
                columns[title.format(row["x"])] = FinishedCell.of(run.store.cell(str(cell)))
        if len(columns) > 2 and "backbone" in columns:
            yield _figure(setting, columns, 1, f"Fig. 6: acceptance rules, row {setting.swept} of Table 3")


def _figure(setting: Setting, columns: Columns, of_level: int, name: str) -> Figure:
    base = columns["backbone"].cell
    samples = decoded(base).drop_duplicates("prompt")
    chosen = samples.groupby("category", sort=True).head(of_level).sort_values("category", kind="stable")
    size = (SIDE_IN * (len(columns) + 1), SIDE_IN * len(chosen) + 0.5)
    drawn = Figure(figsize=size, dpi=120, layout="constrained")
    drawn.suptitle(f"{name}\n{setting.title}", fontsize=9)
    for row, (prompt, level) in enumerate(zip(chosen["prompt"], chosen["category"], strict=True)):
        place = (len(chosen), len(columns) + 1, row * (len(columns) + 1) + 1)
        _points(drawn, place, condition_file(setting.store.path, base.name, prompt), f"{prompt}, {level}")
        for column, (title, outputs) in enumerate(columns.items()):
            _mesh(drawn, (*place[:2], place[2] + 1 + column), setting.store.path, outputs, (prompt, title))
    return drawn


def _points(drawn: Figure, place: tuple[int, int, int], file: Path, title: str) -> None:
    if file.is_file():
        axes: Any = drawn.add_subplot(*place, projection="3d")
        cloud(axes, file)
        axes.set_box_aspect((1, 1, 1), zoom=ZOOM)
    else:
        axes = _words(drawn, place, "this run kept no points")
    axes.set_title(title, fontsize=7)


def _mesh(drawn: Figure, place: tuple[int, int, int], run: Path, outputs: FinishedCell, name: tuple[str, str]) -> None:
    prompt, title = name
    samples = decoded(outputs.cell)
    samples = samples[samples["prompt"] == prompt].sort_values("repetition")
    key = (prompt, int(samples["repetition"].iloc[0])) if len(samples) else None
    if key is None or key not in outputs.samples.index or not str(outputs.samples.loc[key, "output"]).endswith(".ply"):
        reason = "not decoded" if key is None else str(samples["error"].iloc[0] or "no mesh")
        _words(drawn, place, reason).set_title(f"{title}: no mesh", fontsize=7)
        return
    axes: Any = drawn.add_subplot(*place, projection="3d")
    draw(axes, run / str(outputs.samples.loc[key, "output"]), EDGE)
    axes.set_box_aspect((1, 1, 1), zoom=ZOOM)
    scores, total = (cast("pd.Series[Any]", frame.loc[key]) for frame in (outputs.scores, outputs.totals))
    figures = [f"CD {scores['chamfer']:.3f}"] if "chamfer" in scores else []
    figures += [f"{scores['faces']:.0f} faces"] if "faces" in scores else []
    axes.set_title(f"{title}\n{', '.join([*figures, f'{total.wall_s:.2f} s'])}", fontsize=7)


def _words(drawn: Figure, place: tuple[int, int, int], text: str) -> Any:
    axes = drawn.add_subplot(*place)
    axes.set_axis_off()
    axes.text(0.5, 0.5, fill(text[:120], 22), fontsize=6, ha="center", va="center", transform=axes.transAxes)
    return axes
