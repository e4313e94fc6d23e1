"""What a run measured, in the papers' terms: the summary's rows, with seconds and passes of whole outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import matplotlib.image
import pandas as pd

from harness.record import stats
from reports.summary import FinishedCell, Row, metric_interval, put, summarise
from reports.text_table import Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Cell, Store


CELL = ("method", "backbone", "task", "temperature", "top_k", "tokens", "pixels")
"""What a selection may name of a cell; everything else in it is an option of the method."""


def fits(rows: pd.DataFrame, /, **selection: Any) -> pd.DataFrame:
    """Cells with these values; of CELL, None stands for any value."""
    options = dict(selection)
    for key in CELL:
        value = options.pop(key, None)
        rows = rows if value is None else rows[rows[key] == value]
    chosen = [all(cell.get(key) == value for key, value in options.items()) for cell in rows["options"]]
    return rows[pd.Series(chosen, rows.index, dtype=bool)]


@dataclass(frozen=True)
class Measured:
    """Finished cells of one backbone, type, temperature and task, the second autoregressive set left out.

    Args:
        rows: of ``summary.summarise``, indexed by cell; with ``options`` (the method's parameters), ``tokens`` (an
            output), ``pixels`` (height of a picture; NaN where there is none), ``drafts`` (nodes of the largest draft),
            ``prompts`` (how many were decoded), and with intervals ``seconds`` (an output: prefill and steps),
            ``passes`` (an output), ``passes_per_token`` and ``step_ms`` (mean of the steps).
    """

    backbone: str
    dtype: str
    temperature: float
    task: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        """As in headings."""
        top_k = sorted(set(self.rows["top_k"]) - {0})
        sampled = f"T = {self.temperature:g}" + (f", top-k {', '.join(map(str, top_k))}" if top_k else "")
        return f"{self.backbone} {self.dtype}, {sampled}, {self.task}, n = {int(self.rows['n_ok'].max())}"

    def has(self, *keys: str) -> bool:
        """Whether one of its cells has one of these figures."""
        return any(key in self.rows and self.rows[key].notna().any() for key in keys)

    def row(self, cell: str) -> pd.Series[Any]:
        """A cell's figures."""
        return cast("pd.Series[Any]", self.rows.loc[cell])

    def cells(self, *methods: str, role: str = "") -> list[str]:
        """Cells that these methods filled, or of a role."""
        rows = self.rows["role"] == role if role else self.rows["method"].isin(methods)
        return [str(name) for name in self.rows.index[rows]]

    def label(self, cell: str) -> str:
        """A cell's method and what sets it apart."""
        return str(self.row(cell)["label"])

    def find(self, **selection: Any) -> str | None:
        """The first cell that ``fits``; None: it was not run."""
        return next((str(name) for name in fits(self.rows, **selection).index), None)


@dataclass(frozen=True)
class Run:
    """A run and its groups of cells.

    Args:
        roles: of the suite: what the cells of a role are.
    """

    store: Store
    groups: Sequence[Measured]
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def measured(store: Store) -> list[Measured]:
    """A group for each backbone, type, temperature and task, in the order of the run."""
    frame = summarise(store)
    done = frame[(frame["status"] == "done") & (frame["role"] != "floor")]
    done = done[done["n_ok"] > 0] if len(done) else done
    if done.empty:
        return []
    more = pd.DataFrame([_whole(store, store.cell(name)) for name in done["cell"]], index=done["cell"])
    rows = done.set_index("cell").join(more)
    return [
        Measured(str(first["backbone"]), str(first["dtype"]), float(first["temperature"]), str(first["task"]), cells)
        for _, cells in rows.groupby(["backbone", "dtype", "temperature", "task"], sort=False)
        for first in (cells.iloc[0],)
    ]


def _whole(store: Store, cell: Cell) -> Row:
    held = FinishedCell.of(cell)
    frame = held.totals
    row: Row = {"options": dict(cell.meta.get("params") or {}), "tokens": float(frame["output"].mean())}
    pictures = [name for name in held.samples["output"].fillna("") if name.endswith(".png")]
    row["pixels"] = float(len(matplotlib.image.imread(store.path / pictures[0]))) if pictures else None
    put(row, "seconds", stats.mean(frame["wall_s"] + frame["prefill_ms"] / 1e3))
    put(row, "passes", stats.mean(frame["nfe"].astype(float)))
    put(row, "passes_per_token", metric_interval("nfe_per_output", frame))
    put(row, "step_ms", metric_interval("step_ms", frame))
    put(row, "mean_tree_depth", metric_interval("mean_tree_depth", frame))
    row["prompts"] = int(frame.index.get_level_values("prompt").nunique())
    row["drafts"] = int(cell.steps["drafted"].max())
    return row


KEYS = ["prompt", "repetition"]
"""Of an output."""


def decoded(cell: Cell) -> pd.DataFrame:
    """Samples that count, well decoded or not."""
    return cell.samples[~cell.samples["warmup"].astype(bool)]


def counted(cell: Cell) -> pd.DataFrame:
    """Samples that count and were decoded well."""
    samples = decoded(cell)
    return samples[samples["status"] == "ok"]


def cycles(cell: Cell) -> pd.DataFrame:
    """Steps of counted outputs in their order, with ``begin`` (place of the first token) and ``kept`` (tokens)."""
    steps = cell.steps[~cell.steps["warmup"].astype(bool)]
    steps = steps.merge(counted(cell)[KEYS], on=KEYS).sort_values([*KEYS, "step"])
    kept = steps["emitted"] - steps["overshoot"]
    begin = kept.groupby([steps[key] for key in KEYS], sort=False).cumsum() - kept
    return steps.assign(begin=begin, kept=kept, levels=steps.get("levels", 0))


def plain(
    title: str, lines: Sequence[Mapping[str, str]], notes: Sequence[str] = (), labels: int = 1
) -> list[TextTable]:
    """A sheet of lines by heading, the first headings kept longest on a narrow terminal; none of no lines.

    Args:
        labels: columns that name a row.
    """
    if not lines:
        return []
    columns = tuple(Column(heading, heading, rank=max(0, i - labels + 1)) for i, heading in enumerate(lines[0]))
    return [TextTable(title, columns, [list(line.values()) for line in lines], list(notes))]


def over_seeds(rows: pd.DataFrame) -> str:
    """What the intervals are over where every cell decoded one prompt; "" where one decoded more."""
    seeds = int(rows["n_ok"].max())
    return f"one prompt: intervals are over its {seeds} seeds" if rows["prompts"].max() == 1 and seeds > 1 else ""
