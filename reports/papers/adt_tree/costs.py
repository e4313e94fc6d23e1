"""Trees of a run: how deep they were, how much of them was used, what they cost, and where adapting them gained.

A cycle is a step. Symbols: d levels of a tree, k children a node, N nodes kept. Source: ADT-Tree, eqs. 4 and 5, and
section VI for the stated limitation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from harness.record import stats
from reports.papers.measured import Measured, Wanted, shown, written
from reports.summary import FinishedCell, metric_interval, token_ms
from reports.text_table import Column, TextTable, number

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

KEYS = ["prompt", "repetition"]
GROWN = ("lookahead", "medusa", "specinfer", "spectr", "eagle1", "eagle2", "eagle3", "lantern", "lanternpp", "adt_tree")
"""Methods that draft trees."""
FIXED = ("eagle2", "lantern", "eagle3")
"""Those whose trees have one depth and width, as parameters."""
RIVALS = (
    *(("eagle2", rival) for rival in ("medusa", "speculative", "eagle1")),
    *(("eagle3", rival) for rival in ("medusa", "speculative")),
    ("adt_tree", "eagle2"),
)


def cycles(cell: Cell) -> pd.DataFrame:
    """Steps of counted outputs in their order, with ``begin`` (place of the first token) and ``kept`` (tokens)."""
    good = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    steps = cell.steps[~cell.steps["warmup"].astype(bool)].merge(good[KEYS], on=KEYS).sort_values([*KEYS, "step"])
    kept = steps["emitted"] - steps["overshoot"]
    begin = kept.groupby([steps[key] for key in KEYS], sort=False).cumsum() - kept
    return steps.assign(begin=begin, kept=kept, levels=steps.get("levels", 0))


def named(group: Measured, methods: Sequence[str]) -> list[str]:
    """Cells of the group that these methods filled."""
    return [str(name) for name in group.rows.index[group.rows["method"].isin(methods)]]


def columns(*titles: str) -> tuple[Column, ...]:
    """The first names a row."""
    return tuple(Column(title, title, rank=i) for i, title in enumerate(titles))


def overview(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Tokens a pass and a cycle, depth and use of trees, speed-up and verdict of every method of a group."""
    heads = (
        "decoding",
        "verdict",
        "tau",
        "wall speed-up",
        "SCR",
        "mean depth",
        "utilisation",
        "drafter passes a cycle",
    )
    sheets = []
    for group in groups:
        held = {str(name): FinishedCell.of(store.cell(str(name))) for name in group.rows.index}
        rows = [_use(group, name, one) for name, one in held.items()]
        title = f"Trees: depth, use and speed | measured on {group.title}"
        notes = ["mean depth: levels of the drafts as read / cycles; utilisation: accepted drafts / levels"]
        notes += [
            f"tau, {group.row(a)['label']} less {group.row(b)['label']}: {written(gap)}"
            for a, b in _pairs(group)
            if (gap := stats.difference(held[b].totals, held[a].totals, "output", "steps"))
        ]
        sheets.append(TextTable(title, columns(*heads), rows, notes))
    return sheets


def _use(group: Measured, name: str, held: FinishedCell) -> list[str]:
    row = group.row(name)
    figures = [shown(row, (key,), 2) for key in ("tau", "speedup", "scr")]
    depth, used = (
        written(metric_interval("mean_tree_depth", held.totals)),
        written(stats.ratio(held.totals, "accepted", "levels")) if held.totals["levels"].sum() else "-",
    )
    return [str(row["label"]), str(row["verdict"]), *figures, depth, used, number(row["draft_nfe"])]


def _pairs(group: Measured) -> list[tuple[str, str]]:
    """The first cells of the methods that are to be compared."""
    found = [(group.find(Wanted(ours)), group.find(Wanted(theirs))) for ours, theirs in RIVALS]
    return [(ours, theirs) for ours, theirs in found if ours and theirs]


COSTS = (
    *("decoding", "d", "k", "N", "candidates, eq. 5", "nodes read, min(N, eq. 5)", "nodes read, counted"),
    *("drafter passes, eq. 4", "drafter passes, counted", "target passes"),
    *("drafter ms, eq. 4 fitted", "drafter ms, measured"),
)


class Cost(NamedTuple):
    """Of trees of d levels, k children a node and N nodes; means over cycles with room for d levels and one more.

    Args:
        candidates: eq. 5. nodes: read by the target. passes: of the drafter. targets: of the target. draft_ms: a cycle.
    """

    d: int
    k: int
    N: int
    candidates: int
    nodes: float
    passes: float
    targets: float
    draft_ms: float


def cost(cell: Cell) -> Cost | None:
    """None where no cycle had room for the whole tree."""
    options = cell.meta["params"]
    d, k, most = int(options["depth"]) + 1, int(options["width"]), int(options["nodes"])
    found = cycles(cell)
    total = found.groupby(KEYS)["kept"].transform("sum")
    whole = found[total - found["begin"] > d]
    if whole.empty:
        return None
    drafted, passes, targets, ns = (float(whole[name].mean()) for name in ("drafted", "draft_nfe", "nfe", "draft_ns"))
    return Cost(d, k, most, k * k * (d - 1) + k, drafted, passes, targets, ns / 1e6)


def costs(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """Eqs. 4 and 5 beside what was counted, a row a fixed tree; T_S and T_N fitted where there are three trees."""
    sheets = []
    for group in groups:
        held = {name: found for name in named(group, FIXED) if (found := cost(store.cell(name)))}
        sizes = np.array([[one.d, min(one.N, one.candidates)] for one in held.values()], dtype=np.float64)
        fits = len(held) > 2 and np.linalg.matrix_rank(sizes) == 2
        each = np.linalg.lstsq(sizes, [one.draft_ms for one in held.values()], rcond=None)[0] if fits else None
        rows = []
        for (name, one), size in zip(held.items(), sizes, strict=True):
            row = [str(group.row(name)["label"]), *map(str, one[:4]), str(min(one.N, one.candidates))]
            row += [number(one.nodes), str(one.d), number(one.passes), number(one.targets)]
            rows.append([*row, "-" if each is None else number(float(size @ each)), number(one.draft_ms)])
        notes = ["of cycles with room for the whole tree; eq. 4: T_S d + T_N N; eq. 5: k^2 (d - 1) + k"]
        if each is not None:
            notes.append(f"least squares: T_S {each[0]:.3f} ms a drafter pass, T_N {each[1]:.4f} ms a node")
        if rows:
            sheets.append(
                TextTable(f"ADT-Tree, eqs. 4 and 5 | measured on {group.title}", columns(*COSTS), rows, notes)
            )
    return sheets


def gains(store: Store, group: Measured, name: str) -> pd.DataFrame | None:
    """By picture: ``variance`` of the acceptance length under the fixed tree, and ``gain``, its ms/token over ours.

    Args:
        name: of a cell of ADT-Tree; the fixed tree is the fastest of EAGLE-2, or of LANTERN where it accepts as that.
    """
    relaxed = cast("dict[str, Any]", group.row(name)["options"]).get("acceptance") == "lantern"
    fixed = group.rows[group.rows["method"] == ("lantern" if relaxed else "eagle2")]
    if fixed.empty:
        return None
    cell = store.cell(str(fixed["ms_per_token"].astype(float).idxmin()))
    spread = cycles(cell).groupby(KEYS)["emitted"].var()
    gain = token_ms(FinishedCell.of(cell).totals) / token_ms(FinishedCell.of(store.cell(name)).totals)
    found = pd.DataFrame({"variance": spread, "gain": gain}).dropna()
    return None if found.empty else found


def limitation(store: Store, groups: Sequence[Measured]) -> list[TextTable]:
    """The stated limitation: what adapting gains against how much acceptance lengths of the fixed tree vary."""
    heads = ("decoding", "variance, mean", "gain, pictures of less", "gain, pictures of more", "rank correlation")
    rows = []
    for group in groups:
        for name in named(group, ("adt_tree",)):
            found = gains(store, group, name)
            if found is not None:
                low = found["variance"] <= found["variance"].median()
                parts = [written(stats.mean(part["gain"])) for part in (found[low], found[~low])]
                label = f"{group.row(name)['label']}, T = {group.temperature:g}"
                rows.append([label, written(stats.mean(found["variance"])), *parts, written(correlation(found))])
    notes = [
        "gain: ms/token of the fixed tree over ADT-Tree's, by picture; variance: of the fixed tree's tokens a cycle"
    ]
    title = "ADT-Tree, section VI: gain against the variance of acceptance length"
    return [TextTable(title, columns(*heads), rows, notes)] if rows else []


def correlation(found: pd.DataFrame) -> stats.Interval | None:
    """Of the ranks of both columns, with an interval over prompts."""
    x, y = (found[column].rank() for column in found)
    sums = pd.DataFrame({"n": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y})

    def pearson(s: Any) -> Any:
        n, sx, sy, xx, yy, xy = (s[..., i] for i in range(6))
        return (n * xy - sx * sy) / np.sqrt((n * xx - sx**2) * (n * yy - sy**2))

    made = stats.bootstrap(sums, pearson)
    return made.interval() if made else None
