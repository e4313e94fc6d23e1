"""XSpecMesh's Figs. 4, 8 and 9: points, the backbone's mesh and the method's side by side, with wireframe.

The first shapes of each level, whether they came out well or not: nothing is picked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

from matplotlib import rc_context
from matplotlib.figure import Figure

from harness.record.store import condition_file
from reports.meshes import cloud, draw
from reports.papers.drawing import save
from reports.papers.measured import Measured
from reports.papers.xspecmesh.configs import CONFIGS, Setting, settings
from reports.papers.xspecmesh.figures import sweep
from reports.plot_style import STYLE
from reports.summary import FinishedCell

if TYPE_CHECKING:
    import pandas as pd

    from harness.record.store import Store

OF_LEVEL = 2
"""Shapes of each level."""
COLUMNS = {"truncated": "truncated context", "A": "backbone", "D": "heads alone (D)", "E": "with LoRA (E)"}
Columns = Mapping[str, FinishedCell]
"""Outputs by the title of their column."""
SIDE_IN = 2.7
EDGE = 0.5
"""Width of the wireframe, in points."""
ZOOM = 1.1
"""How much of the white around a shape is left out."""


def comparison(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """A row a shape, a column a row of Table 3 that ran; over each mesh its Chamfer distance, faces and seconds."""
    written: list[Path] = []
    for setting in settings(store, groups):
        columns = {title: held for key, title in COLUMNS.items() if (held := setting.held(CONFIGS[key]))}
        if len(columns) > 1 and COLUMNS["A"] in columns:
            figure = _figure(setting, columns, OF_LEVEL, "Figs. 4, 8, 9: the first shapes of each level")
            written.append(save(figure, outdir, "comparison", len(written)))
    return written


def acceptance(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 6 as the paper shows it: one shape of each level under every threshold and K_a, beside the backbone's."""
    written: list[Path] = []
    for setting in settings(store, groups):
        swept = {"delta = {:g}": sweep(setting, "delta"), "K_a = {:g}": sweep(setting, "accept_top", acceptance="top")}
        columns = {"backbone": held} if (held := setting.held(CONFIGS["A"])) else {}
        for title, rows in swept.items():
            for cell, row in rows.sort_values("x").iterrows():
                columns[title.format(row["x"])] = FinishedCell.of(store.cell(str(cell)))
        if len(columns) > 2 and "backbone" in columns:
            figure = _figure(setting, columns, 1, f"Fig. 6: acceptance rules, row {setting.ours} of Table 3")
            written.append(save(figure, outdir, "fig6-meshes", len(written)))
    return written


def _figure(setting: Setting, columns: Columns, of_level: int, name: str) -> Figure:
    base = columns["backbone"]
    run = base.cell.samples[~base.cell.samples["warmup"].astype(bool)].drop_duplicates("prompt")
    chosen = run.groupby("category", sort=True).head(of_level).sort_values("category", kind="stable")
    size = (SIDE_IN * (len(columns) + 1), SIDE_IN * len(chosen) + 0.5)
    with rc_context(STYLE):
        figure = Figure(figsize=size, dpi=120, layout="constrained")
        figure.suptitle(f"{name}\n{setting.title}", fontsize=9)
        for row, (prompt, level) in enumerate(zip(chosen["prompt"], chosen["category"], strict=True)):
            place = (len(chosen), len(columns) + 1, row * (len(columns) + 1) + 1)
            _points(figure, place, condition_file(setting.store.path, base.cell.name, prompt), f"{prompt}, {level}")
            for column, (title, held) in enumerate(columns.items()):
                _mesh(figure, (*place[:2], place[2] + 1 + column), setting.store.path, held, (prompt, title))
    return figure


def _points(figure: Figure, place: tuple[int, int, int], file: Path, title: str) -> None:
    if file.is_file():
        axes: Any = figure.add_subplot(*place, projection="3d")
        cloud(axes, file)
        axes.set_box_aspect((1, 1, 1), zoom=ZOOM)
    else:
        axes = _words(figure, place, "this run kept no points")
    axes.set_title(title, fontsize=7)


def _mesh(figure: Figure, place: tuple[int, int, int], run: Path, held: FinishedCell, name: tuple[str, str]) -> None:
    prompt, title = name
    samples = held.cell.samples[~held.cell.samples["warmup"].astype(bool)]
    found = samples[samples["prompt"] == prompt].sort_values("repetition")
    key = (prompt, int(found["repetition"].iloc[0])) if len(found) else None
    if key is None or key not in held.samples.index or not str(held.samples.loc[key, "output"]).endswith(".ply"):
        reason = "not decoded" if key is None else str(found["error"].iloc[0] or "no mesh")
        _words(figure, place, reason).set_title(f"{title}: no mesh", fontsize=7)
        return
    axes: Any = figure.add_subplot(*place, projection="3d")
    draw(axes, run / str(held.samples.loc[key, "output"]), EDGE)
    axes.set_box_aspect((1, 1, 1), zoom=ZOOM)
    scores, total = (cast("pd.Series[Any]", frame.loc[key]) for frame in (held.scores, held.totals))
    said = [f"CD {scores['chamfer']:.3f}"] if "chamfer" in scores else []
    said += [f"{scores['faces']:.0f} faces"] if "faces" in scores else []
    axes.set_title(f"{title}\n{', '.join([*said, f'{total.wall_s:.2f} s'])}", fontsize=7)


def _words(figure: Figure, place: tuple[int, int, int], text: str) -> Any:
    axes = figure.add_subplot(*place)
    axes.set_axis_off()
    axes.text(0.5, 0.5, fill(text[:120], 22), fontsize=6, ha="center", va="center", transform=axes.transAxes)
    return axes
