"""Tables of ADT-Tree: printed ones, and those of trees: their depth, utilisation and cost, and the gain of adaptation.

The printed tables need two facts beyond their YAML. A fixed base is expressed by bounds: from a base of 1, d is 1 or 2;
from a base of k, the width is k minus or plus one step, whatever the neighbour had. And one backbone of the run stands
for each of the paper's models.

A cycle is a step. Symbols: d levels of a tree, k children a node, N nodes in the draft. Source: ADT-Tree, eqs. 4 and 5,
and section VI for the stated limitation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell, token_ms
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import sheet
from stridebench.reports.papers.filled_tables import PaperFacts, SheetLine, SheetScene
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, by_group, cycles, plain
from stridebench.reports.text_table import TextTable, estimate_text, measured_text, number


def options(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add ``fixed`` to the options of ADT-Tree: which of depth (d) and width (k) its bounds fix."""
    if not {"depths", "widths", "step_k"} <= set(params):
        return params
    depth, (least, most) = list(params["depths"]) == [1, 2], params["widths"]
    return {**params, "fixed": ("d" if depth else "") + ("k" if most - least == params["step_k"] else "")}


def stand_ins(scene: SheetScene) -> dict[str, str]:
    """Return the run's backbones by the paper's models: those models if the run has them, else in their order."""
    printed, backbones = scene.table.rows, dict.fromkeys(scene.cells["backbone"])
    models = dict.fromkeys(printed["Model"]) if "Model" in printed else [scene.layout.model]
    named = {scene.table.paper.model_of(backbone): backbone for backbone in backbones}
    if itself := {model: named[model] for model in models if model in named}:
        return itself
    return dict(zip(models, backbones, strict=False))


def lines(scene: SheetScene) -> Iterator[SheetLine]:
    """Assign each row the backbone that stands for its model."""
    backbones = stand_ins(scene)
    for line in scene.lines:
        backbone = backbones.get(line.labels[0] if "Model" in scene.table.rows else scene.layout.model)
        yield replace(line, selection={**(line.selection or {}), "backbone": backbone} if backbone else None)


def notes(scene: SheetScene) -> Iterator[str]:
    """Say which backbone stands for which model."""
    yield from (f"{backbone} stands for {model}" for model, backbone in stand_ins(scene).items())


FACTS = PaperFacts(options=options, lines=lines, notes=notes)


FIXED = ("eagle2", "lantern", "eagle3")
"""Methods whose depth and width are parameters."""
COMPARED = (
    ("eagle2", "medusa"),
    ("eagle2", "speculative"),
    ("eagle2", "eagle1"),
    ("eagle3", "medusa"),
    ("eagle3", "speculative"),
    ("adt_tree", "eagle2"),
)


@sheet("trees", "adt_tree_trees")
def overview(run: MeasuredRun) -> Iterator[TextTable]:
    """Return a table for each group: tokens a pass and a cycle, depth and use of trees, speed-up, verdict."""
    for group in run.groups:
        outputs = {str(name): FinishedCell.of(run.store.cell(str(name))) for name in group.rows.index}
        lines = [_use(group.row(name), outputs_of_cell) for name, outputs_of_cell in outputs.items()]
        notes = ["mean depth: levels of the drafts as read / cycles; utilisation: accepted drafts / levels"]
        for method, rival in COMPARED:
            a, b = group.find(method=method), group.find(method=rival)
            if a and b and (gap := stats.difference(outputs[b].totals, outputs[a].totals, "output", "steps")):
                notes.append(f"tau, {group.label(a)} less {group.label(b)}: {estimate_text(gap)}")
        yield from plain(f"Trees: depth, use and speed | measured on {group.title}", lines, notes)


def _use(row: pd.Series[Any], finished: FinishedCell) -> dict[str, str]:
    used = estimate_text(stats.ratio(finished.totals, "accepted", "levels")) if finished.totals["levels"].sum() else "-"
    return {
        "decoding": str(row["label"]),
        "verdict": str(row["verdict"] or "-"),
        "tau": measured_text(row, "tau"),
        "wall speed-up": measured_text(row, "speedup"),
        "SCR": measured_text(row, "scr"),
        "mean depth": measured_text(row, "mean_tree_depth"),
        "utilisation": used,
        "drafter passes a cycle": number(row["draft_nfe"]),
    }


class TreeCost(NamedTuple):
    """Costs of trees of d levels, k children a node and N nodes: means over cycles with room for d + 1 levels.

    Args:
        d: levels.
        k: children a node.
        N: nodes.
        candidates: by eq. 5.
        nodes: read by the target.
        targets: passes of the target.
    """

    d: int
    k: int
    N: int
    candidates: int
    nodes: float
    passes: float
    targets: float
    draft_ms: float

    @property
    def read(self) -> int:
        """Return the number of nodes that the target reads."""
        return min(self.N, self.candidates)


def cost(cell: SealedCell) -> TreeCost | None:
    """Return the costs of a cell, or None if no cycle had room for the whole tree, or its size is chosen by cost."""
    options = cell.meta.params
    if options["depth"] is None or options["nodes"] is None:
        return None
    d, k, most = int(options["depth"]) + 1, int(options["width"]), int(options["nodes"])
    steps = cycles(cell)
    total = steps.groupby(KEYS)["kept"].transform("sum")
    roomy = steps[total - steps["begin"] > d]
    if roomy.empty:
        return None
    drafted, passes, targets, ns = (float(roomy[name].mean()) for name in ("drafted", "draft_nfe", "nfe", "draft_ns"))
    return TreeCost(d, k, most, k * k * (d - 1) + k, drafted, passes, targets, ns / 1e6)


@sheet("adt_tree_costs")
def costs(run: MeasuredRun) -> Iterator[TextTable]:
    """Compare eqs. 4 and 5 with the counts, one row a fixed tree; three trees are enough to fit T_S and T_N."""
    for group in run.groups:
        trees = {name: tree for name in group.cells(*FIXED) if (tree := cost(run.store.cell(name)))}
        sizes = np.array([[tree.d, tree.read] for tree in trees.values()], dtype=np.float64)
        fitted = len(trees) > 2 and np.linalg.matrix_rank(sizes) == 2
        times = np.linalg.lstsq(sizes, [tree.draft_ms for tree in trees.values()], rcond=None)[0] if fitted else None
        lines = [
            {
                "decoding": group.label(name),
                "d": str(tree.d),
                "k": str(tree.k),
                "N": str(tree.N),
                "candidates, eq. 5": str(tree.candidates),
                "nodes read, min(N, eq. 5)": str(tree.read),
                "nodes read, counted": number(tree.nodes),
                "drafter passes, eq. 4": str(tree.d),
                "drafter passes, counted": number(tree.passes),
                "target passes": number(tree.targets),
                "drafter ms, eq. 4 fitted": "-" if times is None else number(float(size @ times)),
                "drafter ms, measured": number(tree.draft_ms),
            }
            for (name, tree), size in zip(trees.items(), sizes, strict=True)
        ]
        notes = ["of cycles with room for the whole tree; eq. 4: T_S d + T_N N; eq. 5: k^2 (d - 1) + k"]
        if times is not None:
            notes.append(f"least squares: T_S {times[0]:.3f} ms a drafter pass, T_N {times[1]:.4f} ms a node")
        yield from plain(f"ADT-Tree, eqs. 4 and 5 | measured on {group.title}", lines, notes)


def gains(store: Store, group: CellGroup, name: str) -> pd.DataFrame | None:
    """Return ``variance`` and ``gain`` by picture, or None if the run has no fixed tree.

    ``variance`` is that of the acceptance length under the fixed tree; ``gain`` is its ms/token over ADT-Tree's. The
    fixed tree is the fastest of EAGLE-2, or of LANTERN if ADT-Tree accepts by LANTERN's rule.
    """
    relaxed = cast("dict[str, Any]", group.row(name)["options"]).get("acceptance") == "lantern"
    fixed = group.rows[group.rows["method"] == ("lantern" if relaxed else "eagle2")]
    if fixed.empty:
        return None
    cell = store.cell(str(fixed["ms_per_token"].astype(float).idxmin()))
    spread = cycles(cell).groupby(KEYS)["emitted"].var()
    gain = token_ms(FinishedCell.of(cell).totals) / token_ms(FinishedCell.of(store.cell(name)).totals)
    pictures = pd.DataFrame({"variance": spread, "gain": gain}).dropna()
    return None if pictures.empty else pictures


@sheet("adt_tree_gain")
def limitation(run: MeasuredRun) -> list[TextTable]:
    """Compare the gain of adaptation with the variance of the fixed tree's acceptance length (stated limitation)."""
    lines = []
    for group in run.groups:
        for name in group.cells("adt_tree"):
            pictures = gains(run.store, group, name)
            if pictures is None:
                continue
            low = pictures["variance"] <= pictures["variance"].median()
            line = {
                "decoding": group.label(name),
                "variance, mean": estimate_text(stats.mean(pictures["variance"])),
                "gain, pictures of less": estimate_text(stats.mean(pictures[low]["gain"])),
                "gain, pictures of more": estimate_text(stats.mean(pictures[~low]["gain"])),
                "rank correlation": estimate_text(correlation(pictures)),
            }
            lines.append((group, line))
    notes = [
        "gain: ms/token of the fixed tree over ADT-Tree's, by picture; variance: of the fixed tree's tokens a cycle"
    ]
    return by_group("ADT-Tree, section VI: gain against the variance of acceptance length", lines, notes)


def correlation(pictures: pd.DataFrame) -> stats.Interval | None:
    """Return the rank correlation of both columns, with an interval over prompts."""
    x, y = (pictures[column].rank() for column in pictures)
    sums = pd.DataFrame({"n": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y})

    def pearson(s: Any) -> Any:
        n, sx, sy, xx, yy, xy = (s[..., i] for i in range(6))
        return (n * xy - sx * sy) / np.sqrt((n * xx - sx**2) * (n * yy - sy**2))

    sample = stats.bootstrap(sums, pearson)
    return sample.interval() if sample else None


# ADT-Tree's Fig. 3 (b): the rank of accepted nodes among their siblings, by the drafter's confidence.


TREES = ("eagle2", "eagle3", "lantern", "adt_tree")
"""Methods that sort siblings by confidence, so that a node's rank is the smallest k that contains it."""


def shares(store: Store, name: str) -> npt.NDArray[Any] | None:
    """Return the shares of accepted nodes by rank, from the first, or None if no rank was stored."""
    column = cycles(store.cell(name)).get("ranks")
    ranks = [np.asarray(row, dtype=np.int64) for row in column if row is not None] if column is not None else []
    counts = np.bincount(np.concatenate(ranks)) if ranks else np.zeros(0)
    return counts / counts.sum() if counts.sum() else None


@sheet("adt_tree_fig3b")
def table(run: MeasuredRun) -> list[TextTable]:
    """Return Fig. 3 (b) as a table: accepted nodes by rank among their siblings."""
    lines = [
        (
            group,
            {
                "decoding": group.label(name),
                "the likeliest": f"{places[0]:.0%}",
                "any other": f"{places[1:].sum():.0%}",
                "accepted nodes by place among siblings, from 1": " ".join(f"{share:.0%}" for share in places),
            },
        )
        for group in run.groups
        for name in group.cells(*TREES)
        if (places := shares(run.store, name)) is not None
    ]
    notes = ["ends of rows, of which there is one candidate, are among the first; runs without ranks are left out"]
    return by_group("ADT-Tree, Fig. 3 (b): places of accepted nodes", lines, notes)


@source("adt_tree_places")
def places(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 3 (b): the shares of accepted nodes by place, one line a tree."""
    for group in run.groups:
        trees = {group.label(name): shares(run.store, name) for name in group.cells(*TREES)}
        parts = [
            pd.DataFrame({"place": np.arange(1, len(ranked) + 1), "share": ranked, "line": label})
            for label, ranked in trees.items()
            if ranked is not None
        ]
        if parts:
            yield ChartData(group.title, pd.concat(parts))
