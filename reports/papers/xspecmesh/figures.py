"""Figs. 5 to 7 of XSpecMesh: heads, threshold, acceptance rules, and the test set by level.

The paper prints these as pictures; of their values it names the best of Fig. 5 alone (D = 4, delta = 0.5), which is
drawn as a cross. Symbols: D heads, delta threshold, K_a best tokens accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.record.store import condition_file
from reports.meshes import cloud
from reports.papers.drawing import COLOURS, curve, legend, save
from reports.papers.measured import Measured
from reports.papers.xspecmesh.configs import CONFIGS, PUBLISHED, Setting, settings
from reports.plot_style import DASHES, OFFSET, STYLE

if TYPE_CHECKING:
    from harness.record.store import Store

PRINTED = {"scr": 2.021, "step_ms": 47.83, "speedup": 1.71, "score.chamfer": 0.1168, "score.hausdorff": 0.2261}
"""Of the paper's setting, Table 3, row E."""
SAYS = {
    "scr": "SCR, output tokens / target pass",
    "step_ms": "step latency, ms",
    "speedup": "wall speed-up over the backbone",
    "score.chamfer": "Chamfer distance",
    "score.hausdorff": "Hausdorff distance",
}
SHOWN = 4
"""Shapes of each level on Fig. 7."""


def heads(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 5a: SCR, step latency and speed-up against D; D = 0 is the backbone alone."""

    def draw(setting: Setting) -> Figure | None:
        rows = sweep(setting, "levels")
        base = setting.find(_alone(setting))
        if len(rows) < 2:
            return None
        rows = rows.assign(x=rows["drafts"]).sort_values("x")
        if base is not None:
            rows = pd.concat([setting.rows.loc[[base]].assign(x=0), rows])
        figure, panels = _panels(setting, "Fig. 5a: number of heads", 3)
        for axes, key in zip(panels, ("scr", "step_ms", "speedup"), strict=True):
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            axes.plot(4, PRINTED[key], "x", color="0.4", label="printed, BPT on an RTX 3090")
            axes.set(xlabel="heads D", ylabel=SAYS[key], xticks=sorted({4, *rows["x"]}))
        legend(figure, panels[0])
        return figure

    return _each(store, groups, outdir, "fig5a", draw)


def thresholds(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 5b: speed-up and distances against delta, the backbone's own as a line."""

    def draw(setting: Setting) -> Figure | None:
        rows = sweep(setting, "delta").sort_values("x")
        if len(rows) < 2:
            return None
        figure, panels = _panels(setting, "Fig. 5b: acceptance threshold", 3)
        for axes, key in zip(panels, ("speedup", "score.chamfer", "score.hausdorff"), strict=True):
            if key not in rows:
                _empty(axes)
                continue
            curve(axes, rows["x"], rows, key, "measured", COLOURS[0])
            axes.plot(0.5, PRINTED[key], "x", color="0.4", label="printed, BPT")
            _base(axes, setting, key)
            axes.set(xlabel="threshold delta", ylabel=SAYS[key], xticks=list(rows["x"]))
        legend(figure, panels[0])
        return figure

    return _each(store, groups, outdir, "fig5b", draw)


def rules(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 6: distances and lost shapes against SCR, a line for thresholds and one for the K_a best tokens."""

    def draw(setting: Setting) -> Figure | None:
        lines = {
            "p > delta": sweep(setting, "delta"),
            "among the K_a best": sweep(setting, "accept_top", acceptance="top"),
        }
        if any(rows.empty for rows in lines.values()):
            return None
        figure, panels = _panels(setting, "Fig. 6: threshold against top-K_a", 3)
        for axes, key in zip(panels, ("score.chamfer", "score.hausdorff", "lost"), strict=True):
            for colour, (label, rows) in zip(COLOURS, lines.items(), strict=False):
                rows = rows.assign(lost=rows["n_failed"] / rows["n_run"]).sort_values("x")
                if key not in rows:
                    continue
                curve(axes, rows["scr"], rows, key, label, colour)
                for _, row in rows.iterrows():
                    axes.annotate(f"{row['x']:g}", (row["scr"], row[key]), (3, 4), textcoords=OFFSET, fontsize=7)
            _base(axes, setting, key)
            axes.set(xlabel=SAYS["scr"], ylabel=SAYS.get(key, "share of shapes without a mesh"))
        legend(figure, panels[0])
        return figure

    return _each(store, groups, outdir, "fig6", draw)


def levels(store: Store, groups: Sequence[Measured], outdir: Path) -> list[Path]:
    """Fig. 7: the points of the first shapes of each level, as models were given them."""

    def draw(setting: Setting) -> Figure | None:
        base = setting.held(CONFIGS["A"])
        if base is None:
            return None
        samples = base.cell.samples.drop_duplicates("prompt")
        files = samples["prompt"].map(lambda prompt: condition_file(store.path, base.cell.name, str(prompt)))
        shown = samples.assign(file=files)[files.map(Path.is_file) & (samples["category"] != "")]
        held = {str(level): list(rows["file"])[:SHOWN] for level, rows in shown.groupby("category")}
        return _clouds(setting, held) if held else None

    return _each(store, groups, outdir, "fig7", draw)


def _clouds(setting: Setting, held: Mapping[str, Sequence[Path]]) -> Figure:
    figure = Figure(figsize=(1.9 * SHOWN, 1.9 * len(held) + 0.4), dpi=130, layout="constrained")
    figure.suptitle(f"Fig. 7: test shapes by level, as points | {setting.title}", fontsize=9)
    for row, (level, files) in enumerate(held.items()):
        for column, file in enumerate(files):
            axes = figure.add_subplot(len(held), SHOWN, row * SHOWN + column + 1, projection="3d")
            cloud(axes, file)
            axes.set_title(level, fontsize=7)
    return figure


def sweep(setting: Setting, option: str, **rest: Any) -> pd.DataFrame:
    """Cells of the swept row as published (or with ``rest``) but for one option, whose value is in ``x``."""
    config = CONFIGS[setting.ours]
    fixed = {"heads": config.heads, **PUBLISHED, **rest}
    fixed.pop(option, None)
    rows = setting.rows[(setting.rows["backbone"] == config.backbone) & (setting.rows["method"] == "multi_head")]
    fits = [all(options.get(key) == value for key, value in fixed.items()) for options in rows["options"]]
    rows = rows[pd.Series(fits, rows.index, dtype=bool)]
    return rows.assign(x=[options[option] for options in rows["options"]])


def _alone(setting: Setting) -> Any:
    return CONFIGS["A" if setting.ours == "D" else "E-tuned"]


def _base(axes: Axes, setting: Setting, key: str) -> None:
    row = setting.row(setting.find(_alone(setting)))
    if row is not None and pd.notna(row.get(key)):
        axes.axhline(row[key], color="0.6", ls=DASHES, lw=1.1, label="the backbone alone")


def _empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
    axes.set_axis_off()


def _panels(setting: Setting, title: str, count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.2 * count, 3.9), dpi=130, layout="constrained")
    figure.suptitle(f"{title}, row {setting.ours} of Table 3\n{setting.title}", fontsize=9)
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


def _each(
    store: Store, groups: Sequence[Measured], outdir: Path, name: str, draw: Callable[[Setting], Figure | None]
) -> list[Path]:
    written: list[Path] = []
    with rc_context(STYLE):
        for setting in settings(store, groups):
            figure = draw(setting)
            if figure is not None:
                written.append(save(figure, outdir, name, len(written)))
    return written
