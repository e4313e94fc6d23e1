"""Figs. 5 to 7 of XSpecMesh: heads, threshold, acceptance rules, and the test set by level.

The paper prints these as pictures; of their values it names the best of Fig. 5 alone (D = 4, delta = 0.5), which is
drawn as a cross. Symbols: D heads, delta threshold, K_a best tokens accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stridebench.harness.record.store import condition_file
from stridebench.reports.meshes import cloud
from stridebench.reports.papers.drawing import COLOURS, curve, curves, legend, side_by_side, unmeasured
from stridebench.reports.papers.measured import Run, fits
from stridebench.reports.papers.paper_files import published
from stridebench.reports.papers.registry import figure
from stridebench.reports.papers.xspecmesh.facts import Setting, settings
from stridebench.reports.plot_style import DASHES, OFFSET

PRINTED = {"scr": 2.021, "step_ms": 47.83, "speedup": 1.71, "score.chamfer": 0.1168, "score.hausdorff": 0.2261}
"""Of the paper's setting, Table 3, row E."""
AXES = {
    "scr": "SCR, output tokens / target pass",
    "step_ms": "step latency, ms",
    "speedup": "wall speed-up over the backbone",
    "score.chamfer": "Chamfer distance",
    "score.hausdorff": "Hausdorff distance",
    "lost": "share of shapes without a mesh",
}
SHOWN = 4
"""Shapes of each level on Fig. 7."""


@figure("xspecmesh_fig5a")
def heads(run: Run) -> Iterator[Figure]:
    """Fig. 5a: SCR, step latency and speed-up against D; D = 0 is the backbone alone."""
    for setting in settings(run):
        rows = sweep(setting, "levels")
        base = setting.find(setting.alone)
        if len(rows) < 2:
            continue
        rows = rows.assign(x=rows["drafts"]).sort_values("x")
        if base is not None:
            rows = pd.concat([setting.rows.loc[[base]].assign(x=0), rows])
        drawn, panels = _panels(setting, "Fig. 5a: number of heads")
        for axes, key in zip(panels, ("scr", "step_ms", "speedup"), strict=True):
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            axes.plot(4, PRINTED[key], "x", color="0.4", label="printed, BPT on an RTX 3090")
            axes.set(xlabel="heads D", ylabel=AXES[key], xticks=sorted({4, *rows["x"]}))
        legend(drawn, panels[0])
        yield drawn


@figure("xspecmesh_fig5b")
def thresholds(run: Run) -> Iterator[Figure]:
    """Fig. 5b: speed-up and distances against delta, the backbone's own as a line."""
    for setting in settings(run):
        rows = sweep(setting, "delta")
        if len(rows) < 2:
            continue
        drawn, panels = _panels(setting, "Fig. 5b: acceptance threshold")
        for axes, key in zip(panels, ("speedup", "score.chamfer", "score.hausdorff"), strict=True):
            if key not in rows:
                unmeasured(axes)
                continue
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            axes.plot(0.5, PRINTED[key], "x", color="0.4", label="printed, BPT")
            _base(axes, setting, key)
            axes.set(xlabel="threshold delta", ylabel=AXES[key], xticks=list(rows["x"]))
        legend(drawn, panels[0])
        yield drawn


@figure("xspecmesh_fig6")
def rules(run: Run) -> Iterator[Figure]:
    """Fig. 6: distances and lost shapes against SCR, a line for thresholds and one for the K_a best tokens."""
    for setting in settings(run):
        swept = {
            "p > delta": sweep(setting, "delta"),
            "among the K_a best": sweep(setting, "accept_top", acceptance="top"),
        }
        if any(rows.empty for rows in swept.values()):
            continue
        lines = [(name, rows.assign(lost=rows["n_failed"] / rows["n_run"])) for name, rows in swept.items()]
        drawn, panels = _panels(setting, "Fig. 6: threshold against top-K_a")
        for axes, key in zip(panels, ("score.chamfer", "score.hausdorff", "lost"), strict=True):
            curves(axes, lines, "scr", key)
            for _, row in (item for _, rows in lines if key in rows for item in rows.iterrows()):
                axes.annotate(f"{row['x']:g}", (row["scr"], row[key]), (3, 4), textcoords=OFFSET, fontsize=7)
            _base(axes, setting, key)
            axes.set(xlabel=AXES["scr"], ylabel=AXES[key])
        legend(drawn, panels[0])
        yield drawn


@figure("xspecmesh_fig7")
def levels(run: Run) -> Iterator[Figure]:
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


def _base(axes: Axes, setting: Setting, key: str) -> None:
    row = setting.row(setting.find(setting.alone))
    if row is not None and pd.notna(row.get(key)):
        axes.axhline(row[key], color="0.6", ls=DASHES, lw=1.1, label="the backbone alone")


def _panels(setting: Setting, title: str) -> tuple[Figure, list[Axes]]:
    return side_by_side(3, f"{title}, row {setting.swept} of Table 3", setting.title)
