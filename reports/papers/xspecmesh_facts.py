"""XSpecMesh's configurations in a run: which cell is which row of its Table 3, and why a row is missing.

A row is one backbone and one set of heads. Rows C and E use the backbone that was tuned with their heads. The suite's
roles name them: A to E, ``full`` (section 7.6), ``C-tuned``, ``E-tuned`` and ``full-tuned`` (the tuned backbone
alone, the second reference), and ``rival`` (in DeepMesh's place).
Source: Chen et al., XSpecMesh, sections 5.4 and 7.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from stridebench.harness.record import paired_tests, stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell, token_ms
from stridebench.reports.papers.drawing import sheet
from stridebench.reports.papers.filled_tables import PaperFacts, SheetLine, SheetScene
from stridebench.reports.papers.measured import KEYS, MeasuredRun, decoded, fits, plain
from stridebench.reports.papers.paper_files import model_name, printed, published
from stridebench.reports.summary import metric_interval
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text

if TYPE_CHECKING:
    import pandas as pd


DISTANCES = {"chamfer": "CD", "hausdorff": "HD"}
"""Scores of a mesh, and the paper's names of them."""


@dataclass(frozen=True)
class Setting:
    """Finished cells of all backbones of one type, temperature and task.

    Args:
        roles: a backbone each, and heads unless it is decoded autoregressively.
    """

    store: Store
    rows: pd.DataFrame
    roles: Mapping[str, Mapping[str, Any]]

    @property
    def title(self) -> str:
        """Return the text of headings."""
        of_a = fits(self.rows, backbone=self.roles["A"]["backbone"]) if "A" in self.roles else self.rows
        backbone = self.roles["A"]["backbone"] if of_a.empty else of_a["backbone"].iloc[0]
        first = self.rows.iloc[0]
        sampled = f"T = {first['temperature']:g}, {first['task']}, n = {self.rows['n_run'].max():.0f}"
        return f"{backbone} {first['dtype']}, {sampled}"

    @property
    def swept(self) -> str:
        """Return the role whose settings were swept: E, or D if E was not run."""
        return "D" if self.find("E") is None else "E"

    @property
    def alone(self) -> str:
        """Return the role of the swept backbone without heads."""
        return "A" if self.swept == "D" else "E-tuned"

    def selection(self, role: str, **changes: Any) -> dict[str, object] | None:
        """Return a role's selection, as published except for these options, or None if the suite lacks the role."""
        role = self.swept if role == "swept" else role
        if role not in self.roles:
            return None
        if "heads" in self.roles[role]:
            return {"method": "multi_head", **published("multi_head"), **self.roles[role], **changes}
        return {"method": "autoregressive", **self.roles[role]}

    def find(self, role: str, **changes: Any) -> str | None:
        """Return the cell of a role, or None if it has no finished cell."""
        selection = self.selection(role, **changes)
        return None if selection is None else next((str(name) for name in fits(self.rows, **selection).index), None)

    def row(self, cell: str | None) -> pd.Series[Any] | None:
        """Return the figures of a cell."""
        return None if cell is None else cast("pd.Series[Any]", self.rows.loc[cell])

    def outputs(self, role: str) -> FinishedCell | None:
        """Return the outputs of the cell of a role."""
        cell = self.find(role)
        return None if cell is None else FinishedCell.of(self.store.cell(cell))


def settings(run: MeasuredRun) -> list[Setting]:
    """Return a setting for each type, temperature and task of a run."""
    if not run.groups:
        return []
    rows = pd.concat([group.rows for group in run.groups])
    parts = rows.groupby(["dtype", "temperature", "task"], sort=False)
    return [Setting(run.store, part, run.roles) for _, part in parts]


def why(store: Store, selection: Mapping[str, Any] | None) -> str:
    """Say why a row lacks a finished cell."""
    if selection is None:
        return "not in this run"
    sealed = set(store.cells())
    for name, planned in store.manifest.cells.items():
        model, heads = model_name(planned.backbone), planned.params.get("heads", "")
        same = (model, heads) == (model_name(selection["backbone"]), selection.get("heads", ""))
        if same and planned.role != "floor":
            meta = store.cell(name).meta if name in sealed else planned
            if meta.status != "done":
                return f"{meta.status}: {meta.reason or 'not finished'}"
            return "no cell of this setting has an output that can be measured"
    return "not in this run"


def _setting(scene: SheetScene) -> Setting:
    return Setting(scene.run.store, scene.cells, scene.run.roles)


def lines(scene: SheetScene) -> Iterator[SheetLine]:
    """Assign rows to the cells of their roles."""
    for line in scene.lines:
        yield replace(line, selection=_setting(scene).selection(**(line.selection or {})))


def notes(scene: SheetScene) -> Iterator[str]:
    """Say why rows were not measured."""
    lacking: dict[str, list[str]] = {}
    for line in lines(scene):
        if line.selection is None or fits(scene.cells, **line.selection).empty:
            lacking.setdefault(why(scene.run.store, line.selection), []).append(line.labels[0])
    yield from (f"{', '.join(rows)} not measured: {reason}" for reason, rows in lacking.items())


def fields(scene: SheetScene) -> Mapping[str, str]:
    """Return the fields of headings: the setting, and the role that was swept."""
    setting = _setting(scene)
    return {"cells": setting.title, "swept": setting.swept}


FACTS = PaperFacts(lines=lines, notes=notes, fields=fields)


# XSpecMesh's "no difference in quality" as equivalence tests, paired by shape.
# Row A with other seeds is tested too. If it is not equivalent to itself, the shapes are too few for any such
# claim. Source: Chen et al., XSpecMesh, Table 3, for the margin.


MARGIN = 0.05
"""Share of the reference's mean distance: about half the difference of C, which the paper calls worse, to A (8.8 and
11.8 %), and three times the difference of E (0.3 and 1.7 %)."""
PAIRS = (
    *((role, "A") for role in ("B", "C", "D", "E", "full", "rival")),
    *((role, f"{role}-tuned") for role in ("C", "E", "full")),
    *((f"{role}-tuned", "A") for role in ("C", "E", "full")),
    ("E", "C"),
)
"""Compared roles: with the base, with the tuned backbone alone, and E with C."""
NOTES = (
    f"difference: mean over shapes, less the reference; margin: {MARGIN:.0%} of the reference's mean over those shapes",
    "verdict at 5 %: equivalent, the 90 % interval lies within the margin (two one-sided paired t-tests); different, "
    "outside it; inconclusive, neither: more shapes are needed, and it is no evidence of equality",
    "failed: shapes that became no mesh here and at the reference; they have no distance, and are in no other column",
)


@sheet("xspecmesh_quality")
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return one row a pair and distance; a narrow terminal keeps the verdict."""
    for setting in settings(run):
        lines = [line for pair in _pairs(setting) for line in _lines(*pair)]
        for filled_table in plain(f"XSpecMesh: quality as equivalence | measured on {setting.title}", lines, NOTES):
            *columns, verdict = filled_table.columns
            yield replace(filled_table, columns=(*columns, replace(verdict, rank=0)))


def _pairs(setting: Setting) -> Iterator[tuple[str, str, FinishedCell, FinishedCell]]:
    base = setting.outputs("A")
    floor = base.cell.meta.floor if base else None
    if base and floor in setting.store.cells():
        yield "A, other seeds", "A", FinishedCell.of(setting.store.cell(str(floor))), base
    for role, other in PAIRS:
        outputs, reference = setting.outputs(role), setting.outputs(other)
        if outputs and reference:
            yield "truncated" if role == "rival" else role, other, outputs, reference


def _lines(name: str, against: str, outputs: FinishedCell, reference: FinishedCell) -> Iterator[dict[str, str]]:
    shapes = _shapes(outputs).intersection(_shapes(reference))
    lost = [len(shapes.difference(side.samples.index)) for side in (outputs, reference)]
    common = outputs.samples.index.intersection(reference.samples.index)
    for score, title in DISTANCES.items():
        if not {score} <= set(outputs.scores) & set(reference.scores):
            continue
        values = reference.scores.loc[common, score]
        margin = MARGIN * float(values.mean())
        test = paired_tests.equivalence(values, outputs.scores.loc[common, score], margin) if len(common) else None
        yield {
            "configuration": name,
            "against": against,
            "distance": title,
            "shapes": str(test.n) if test else "0",
            "failed": f"{lost[0]} and {lost[1]} of {len(shapes)}",
            "difference": f"{test.difference:+.4f}" if test else "-",
            "margin": f"{test.margin:.4f}" if test else "-",
            "90 % interval": f"[{test.low:+.4f}, {test.high:+.4f}]" if test and test.low is not None else "-",
            "p": f"{test.p:.3g}" if test and test.p is not None else "-",
            "verdict": test.verdict if test else "inconclusive",
        }


def _shapes(outputs: FinishedCell) -> pd.Index[Any]:
    """Return (prompt, repetition) of all samples without warm-up, failed ones too."""
    return decoded(outputs.cell).set_index(KEYS).index


# XSpecMesh's Table 1 (token ids of models) and section 7.2 (results by level of difficulty).


@sheet("xspecmesh_table1")
def vocabularies(run: MeasuredRun) -> list[TextTable]:
    """Return Table 1: token ids of the paper's models and of the backbones that are registered or were run."""
    table = printed("xspecmesh_table1")
    sizes: dict[str, Any] = dict(run.store.manifest.vocabularies)
    for group in run.groups:
        size = run.store.cell(str(group.rows.index[0])).meta.vocabulary
        sizes |= {group.backbone: size} if size is not None else {}
    rows = []
    for row in table.rows.to_dict("records"):
        size = sizes.pop(table.paper.models.get(row["Model"], ""), UNMEASURED)
        rows.append((row["Model"], row["Vocab Size [tokens]"], str(size)))
    rows += [(name, "-", str(size)) for name, size in sizes.items()]
    heads = ("Model", "Vocab Size [tokens], printed", "token ids, measured")
    where = table.layout.where
    notes = [f"{where}: {table.layout.caption}", *(f"printed: {note}" for note in table.rows["notes"] if note)]
    lines = [dict(zip(heads, row, strict=True)) for row in rows]
    return plain(f"XSpecMesh, {where}: printed | registered here", lines, notes)


@sheet("xspecmesh_levels")
def levels(run: MeasuredRun) -> Iterator[TextTable]:
    """Return section 7.2: results of every configuration by the difficulty of the shapes."""
    notes = [
        "level-0: simple, level-1: some detail, level-2: rich; 20, 40 and 40 % of the paper's 200 shapes",
        *printed("xspecmesh_table3").paper.notes,
    ]
    for setting in settings(run):
        lines = [
            {"configuration": "truncated" if role == "rival" else role, **line}
            for role in setting.roles
            if (cell := setting.find(role)) is not None
            for line in _by_level(run.store, run.store.cell(cell))
        ]
        yield from plain(f"XSpecMesh by level | measured on {setting.title}", lines, notes)


def _by_level(store: Store, cell: SealedCell) -> Iterator[dict[str, str]]:
    finished, base = FinishedCell.of(cell), FinishedCell.of(store.cell(str(cell.meta.baseline)))
    samples = decoded(cell)
    for level in sorted(set(samples["category"]) - {""}):
        of_level = finished.samples["category"] == level
        frame, scores = finished.totals[of_level], finished.scores[of_level]
        distances = {
            title: estimate_text(stats.mean(scores[name]), 4) if name in scores else UNMEASURED
            for name, title in DISTANCES.items()
        }
        run = samples[samples["category"] == level]
        yield {
            "level": str(level),
            "failed": f"{int((run['status'] != 'ok').sum())}/{len(run)}",
            **distances,
            "SCR": estimate_text(metric_interval("scr", frame)),
            "wall speed-up": estimate_text(stats.median_ratio(token_ms(base.totals), token_ms(frame))),
        }
