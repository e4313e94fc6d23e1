"""Tables 1 to 4 of XSpecMesh, printed and measured, and its results by level of difficulty.

Symbols: CD, HD Chamfer and Hausdorff distance; SCR step compression ratio; K_s best tokens a tree takes of each head.
Source: Chen et al., XSpecMesh, sections 1, 5, 7.2 and 7.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.record import stats
from reports.papers.adt_tree.costs import columns
from reports.papers.measured import Measured, shown, written
from reports.papers.printed import model_of, printed
from reports.papers.tables import Figure
from reports.papers.xspecmesh.configs import CONFIGS, DISTANCES, Setting, settings, why
from reports.summary import FinishedCell, metric_interval, token_ms
from reports.text_table import UNMEASURED, Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

SAID = {
    "full": "E with all weights of the decoder tuned, section 7.6",
    "C-tuned": "backbone of C alone",
    "E-tuned": "backbone of E alone",
    "full-tuned": "that backbone alone",
    "truncated": "truncated context, in DeepMesh's place",
}
CD, HD = (Figure(title, (f"score.{name}",), 4) for title, name in {"CD": "chamfer", "HD": "hausdorff"}.items())
SPEED = (
    Figure("SCR [tokens/step]", ("scr",), 3),
    Figure("Step Latency [ms]", ("step_ms",)),
    Figure("Speedup [x]", ("predicted",)),
)
WALL = "wall speed-up"
NOTES = (
    "CD, HD: mean over the shapes that came out as meshes; failed: those that did not, of all",
    "SCR: output tokens / target pass; Step Latency: mean wall time of a step; Speedup: as the paper computes it, "
    "SCR x autoregressive step / step, each on its own backbone",
    f"{WALL}: median over shapes of autoregressive ms/token over this, same backbone, decoded in turn",
)


@dataclass(frozen=True)
class Layout:
    """How a printed table is filled.

    Args:
        labels, figures: printed columns. rows: the configuration of each printed row, in order, and its options.
        beyond: configurations that follow.
    """

    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    rows: Callable[[Setting], Sequence[tuple[str, Mapping[str, Any]]]]
    beyond: tuple[str, ...] = ()


def _sampled(setting: Setting) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [(setting.ours, {}), *((setting.ours, {"drafts": "tree", "draft_top": k}) for k in (2, 3, 4))]


LAYOUTS = {
    "xspecmesh_table2": Layout(
        ("Method",),
        (
            Figure("CD (lower better)", CD.keys, 4),
            Figure("HD (lower better)", HD.keys, 4),
            Figure("US [% votes] (higher better)", ()),
            Figure("Avg. Lat. [s] (lower better)", ("seconds",)),
        ),
        lambda _: [("truncated", {}), ("A", {}), ("E", {})],
        ("D",),
    ),
    "xspecmesh_table3": Layout(
        ("ID", "Configuration"),
        (CD, HD, *SPEED),
        lambda _: [(letter, {}) for letter in "ABCDE"],
        ("full", "C-tuned", "E-tuned", "full-tuned"),
    ),
    "xspecmesh_table4": Layout(("Method",), SPEED, _sampled),
}


def table(name: str) -> Callable[[Store, Sequence[Measured]], list[TextTable]]:
    """Fills one of LAYOUTS: a sheet for each type, temperature and task."""
    return lambda store, groups: [_sheet(name, setting) for setting in settings(store, groups)]


def _sheet(name: str, setting: Setting) -> TextTable:
    layout, held = LAYOUTS[name], printed(name)
    theirs = held.rows.to_dict("records")
    wanted = [*zip(theirs, layout.rows(setting), strict=True), *(({}, (key, {})) for key in layout.beyond)]
    body, lacking = [], dict[str, list[str]]()
    for row, (key, options) in wanted:
        cell = setting.find(CONFIGS[key], **options)
        labels = [str(row[label]) for label in layout.labels] if row else _labels(layout, key)
        if cell is None:
            lacking.setdefault(why(setting.store, CONFIGS[key]), []).append(labels[0])
        body.append([*labels, *_line(layout, {str(k): str(v) for k, v in row.items()}, setting.row(cell))])
    notes = [f"{held.where}: {held.caption}"]
    notes += [f"{', '.join(rows)} not measured: {reason}" for reason, rows in lacking.items()]
    notes += [*NOTES, *(f"printed: {note}" for note in held.rows.get("notes", ()) if note)]
    if name == "xspecmesh_table2":
        notes.append("DeepMesh's place has the model of truncated context; US is counted by `stride study tally`")
    heads = [*layout.labels, *(f"{f.title}, {side}" for f in layout.figures for side in ("printed", "measured"))]
    title = f"XSpecMesh, {held.where}: printed | measured on {setting.title}"
    if name == "xspecmesh_table4":
        title += f", row {setting.ours} of Table 3"
    return TextTable(title, _columns([*heads, WALL, "failed"]), body, notes)


ORDER = ("SCR [tokens/step]", "failed", WALL, "CD", "CD (lower better)", "HD", "HD (lower better)")
"""Columns, printed and measured, that a narrow terminal keeps longest; the row's second label goes first."""


def _columns(heads: Sequence[str]) -> tuple[Column, ...]:
    titles = [head.partition(",")[0] for head in heads]
    later = (title for title in titles[1:] if title not in (*ORDER, "Configuration"))
    order = [titles[0], *ORDER, *later, "Configuration"]
    ranks = (2 * order.index(title) + head.endswith("printed") for title, head in zip(titles, heads, strict=True))
    return tuple(Column(title, head, rank=rank) for title, head, rank in zip(titles, heads, ranks, strict=True))


def _labels(layout: Layout, key: str) -> list[str]:
    said = SAID.get(key, f"row {key} of Table 3")
    return [key, said] if len(layout.labels) > 1 else [said]


def _line(layout: Layout, theirs: Mapping[str, str], row: pd.Series[Any] | None) -> list[str]:
    pairs = ((theirs.get(figure.title) or "-", shown(row, figure.keys, figure.digits)) for figure in layout.figures)
    failed = UNMEASURED if row is None else f"{row['n_failed']:.0f}/{row['n_run']:.0f}"
    return [*(text for both in pairs for text in both), shown(row, ("speedup",), 2), failed]


def vocabularies(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Table 1: token ids of the paper's models and of the backbones that are registered or were run."""
    held = printed("xspecmesh_table1")
    sizes = dict(store.manifest.get("vocabularies", {}))
    for group in groups:
        found = store.cell(str(group.rows.index[0])).meta.get("vocabulary")
        sizes |= {group.backbone: found} if found is not None else {}
    ours = {model: name for name in sizes if (model := model_of(name))}
    rows = []
    for row in held.rows.to_dict("records"):
        size = sizes.pop(ours.get(str(row["Model"]), ""), UNMEASURED)
        rows.append([str(row["Model"]), str(row["Vocab Size [tokens]"]), str(size)])
    rows += [[name, "-", str(size)] for name, size in sizes.items()]
    heads = columns("Model", "Vocab Size [tokens], printed", "token ids, measured")
    notes = [f"{held.where}: {held.caption}", *(f"printed: {note}" for note in held.rows["notes"] if note)]
    return [TextTable(f"XSpecMesh, {held.where}: printed | registered here", heads, rows, notes)]


LEVELS = ("configuration", "level", "failed", "CD", "HD", "SCR", WALL)


def levels(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Section 7.2: results of every configuration by the difficulty of the shapes."""
    sheets = []
    for setting in settings(store, groups):
        rows = [
            [key, *line]
            for key, config in CONFIGS.items()
            if (cell := setting.find(config)) is not None
            for line in _by_level(store, store.cell(cell))
        ]
        notes = [
            "level-0: simple, level-1: some detail, level-2: rich; 20, 40 and 40 % of the paper's 200 shapes",
            *NOTES,
        ]
        sheets.append(TextTable(f"XSpecMesh by level | measured on {setting.title}", columns(*LEVELS), rows, notes))
    return sheets


def _by_level(store: Store, cell: Cell) -> Iterator[list[str]]:
    held, base = FinishedCell.of(cell), FinishedCell.of(store.cell(str(cell.meta["baseline"])))
    run = cell.samples[~cell.samples["warmup"].astype(bool)]
    for level in sorted(set(run["category"]) - {""}):
        mine = held.samples["category"] == level
        frame, scores = held.totals[mine], held.scores[mine]
        distances = [written(stats.mean(scores[name]), 4) if name in scores else UNMEASURED for name in DISTANCES]
        all_of_level = run[run["category"] == level]
        failed = f"{int((all_of_level['status'] != 'ok').sum())}/{len(all_of_level)}"
        speed = stats.median_ratio(token_ms(base.totals), token_ms(frame))
        yield [str(level), failed, *distances, written(metric_interval("scr", frame)), written(speed)]
