"""The measurements of a run in the papers' terms: the rows of the summary, with seconds and passes of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import matplotlib.image
import numpy as np
import pandas as pd

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell, Row, reader
from stridebench.reports.papers.paper_files import model_name
from stridebench.reports.summary import metric_interval, set_interval, summarise
from stridebench.reports.text_table import Column, TextTable

CELL = ("method", "backbone", "task", "temperature", "top_k", "tokens", "pixels")
"""Columns that a selection may name; its other keys are options of the method."""


def fits(rows: pd.DataFrame, /, **selection: Any) -> pd.DataFrame:
    """Return the cells with these values; for the keys in CELL, None stands for any value. See `model_name`.

    ``backbone`` may be a list, of which a cell has one.
    """
    options = dict(selection)
    if (backbone := options.pop("backbone", None)) is not None:
        names = {model_name(name) for name in ([backbone] if isinstance(backbone, str) else backbone)}
        rows = rows[rows["backbone"].map(model_name).isin(names)]
    for key in CELL:
        value = options.pop(key, None)
        rows = rows if value is None else rows[rows[key] == value]
    chosen = [all(cell.get(key) == value for key, value in options.items()) for cell in rows["options"]]
    return rows[pd.Series(chosen, rows.index, dtype=bool)]


@dataclass(frozen=True)
class CellGroup:
    """Finished cells of one backbone, type, temperature and task, without the second autoregressive set.

    Args:
        rows: of ``summary.summarise``, indexed by cell; with ``options`` (the method's parameters), ``tokens`` (an
            output), ``pixels`` (height of a picture; NaN if there is none), ``drafts`` (nodes of the largest draft),
            ``prompts`` (how many were decoded), and with intervals ``seconds`` (an output: prefill and steps),
            ``passes`` (an output), ``passes_per_token``, ``step_ms`` (mean of the steps), ``mean_levels_built`` and
            ``mean_tree_depth`` (levels with a node left); of tokens with a choice ``free_logprob`` and its ``_std``.
    """

    backbone: str
    dtype: str
    temperature: float
    task: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        """Return the text of headings."""
        top_k = sorted(set(self.rows["top_k"]) - {0})
        sampled = f"T = {self.temperature:g}" + (f", top-k {', '.join(map(str, top_k))}" if top_k else "")
        return f"{self.backbone} {self.dtype}, {sampled}, {self.task}, n = {int(self.rows['n_ok'].max())}"

    def has(self, *keys: str) -> bool:
        """Return whether one of its cells has one of these figures."""
        return any(key in self.rows and self.rows[key].notna().any() for key in keys)

    def row(self, cell: str) -> pd.Series[Any]:
        """Return the figures of a cell."""
        return cast("pd.Series[Any]", self.rows.loc[cell])

    def cells(self, *methods: str, role: str = "") -> list[str]:
        """Return the cells of these methods, or of a role."""
        rows = self.rows["role"] == role if role else self.rows["method"].isin(methods)
        return [str(name) for name in self.rows.index[rows]]

    def label(self, cell: str) -> str:
        """Return the label of a cell: its method and distinguishing options."""
        return str(self.row(cell)["label"])

    def find(self, **selection: Any) -> str | None:
        """Return the first cell that ``fits``, or None if there is none."""
        return next((str(name) for name in fits(self.rows, **selection).index), None)


@dataclass(frozen=True)
class MeasuredRun:
    """A run and its groups of cells.

    Args:
        roles: of the suite: the selection of each role's cells.
    """

    store: Store
    groups: Sequence[CellGroup]
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def measured(
    store: Store, read: Callable[[str], FinishedCell] | None = None, frame: pd.DataFrame | None = None
) -> list[CellGroup]:
    """Return a group for each backbone, type, temperature and task, in the order of the run."""
    read = reader(store) if read is None else read
    frame = summarise(store, read) if frame is None else frame
    frame = frame.assign(
        task=[str(task).partition(" ")[0] for task in frame["task"]]
    )  # papers name tasks without their settings
    done = frame[(frame["status"] == "done") & (frame["role"] != "floor")]
    done = done[done["n_ok"] > 0] if len(done) else done
    if done.empty:
        return []
    more = pd.DataFrame([_output_totals(store, read(name)) for name in done["cell"]], index=done["cell"])
    rows = done.set_index("cell").join(more)
    return [
        CellGroup(str(first["backbone"]), str(first["dtype"]), float(first["temperature"]), str(first["task"]), cells)
        for _, cells in rows.groupby(["backbone", "dtype", "temperature", "task"], sort=False)
        for first in (cells.iloc[0],)
    ]


def _output_totals(store: Store, finished: FinishedCell) -> Row:
    cell, frame = finished.cell, finished.totals
    row: Row = {"options": dict(cell.meta.params), "tokens": float(frame["output"].mean())}
    pictures = [name for name in finished.samples["output"].fillna("") if name.endswith(".png")]
    row["pixels"] = float(len(matplotlib.image.imread(store.path / pictures[0]))) if pictures else None
    set_interval(row, "seconds", stats.mean(frame["wall_s"] + frame["prefill_ms"] / 1e3))
    set_interval(row, "passes", stats.mean(frame["nfe"].astype(float)))
    set_interval(row, "passes_per_token", metric_interval("nfe_per_output", frame))
    set_interval(row, "step_ms", metric_interval("step_ms", frame))
    set_interval(row, "mean_levels_built", metric_interval("mean_levels_built", frame))
    set_interval(row, "mean_tree_depth", metric_interval("mean_tree_depth", frame))
    row |= _masked_speed(cell, frame) | _free_logprobs(finished)
    row["prompts"] = int(frame.index.get_level_values("prompt").nunique())
    row["drafts"] = int(cell.steps["drafted"].max())
    return row


def _masked_speed(cell: SealedCell, frame: pd.DataFrame) -> Row:
    """Return both figures that are called the speed of a masked model: of the canvas, and of the completion.

    ``canvas_per_pass``: positions of the canvas / passes. ``completion_per_step``: tokens up to the end of text, which
    is included, / passes, each of which is one denoising step; missing if the run did not store them.
    """
    row: Row = {}
    if cell.meta.method == "masked_diffusion":
        set_interval(row, "canvas_per_pass", metric_interval("scr", frame))
        set_interval(row, "completion_per_step", metric_interval("completion_per_pass", frame))
    return row


def _free_logprobs(finished: FinishedCell) -> Row:
    """Return mean and standard deviation of log p over tokens that had a choice.

    A forced token has log p 0. So leaving out as many zeros as there are forced tokens leaves the values of the others,
    whichever zeros are taken.
    """
    frame, values = finished.totals, []
    for logprobs, forced in zip(finished.samples["logprobs"], frame["forced"], strict=True):
        ordered = np.sort(np.asarray(logprobs, dtype=float))  # no log p is above 0
        zeros = int((ordered == 0).sum())
        values.append(ordered[: len(ordered) - min(int(forced), zeros)])
    row: Row = {}
    sums = pd.DataFrame({"logprob": frame["logprob"], "free": [float(len(v)) for v in values]}, index=frame.index)
    set_interval(row, "free_logprob", stats.ratio(sums[sums["logprob"].notna()], "logprob", "free"))
    joined = np.concatenate(values) if values else np.zeros(0)
    row["free_logprob_std"] = float(joined.std(ddof=1)) if len(joined) > 1 else None
    return row


KEYS = ["prompt", "repetition"]
"""Columns that identify an output."""


def decoded(cell: SealedCell) -> pd.DataFrame:
    """Return all samples without warm-up, failed ones too."""
    return cell.samples[~cell.samples["warmup"].astype(bool)]


def counted(cell: SealedCell) -> pd.DataFrame:
    """Return the samples that count: no warm-up, no failure."""
    samples = decoded(cell)
    return samples[samples["status"] == "ok"]


def cycles(cell: SealedCell) -> pd.DataFrame:
    """Return the steps of counted outputs in order, with ``begin`` (index of the first token) and ``kept`` (tokens)."""
    steps = cell.steps[~cell.steps["warmup"].astype(bool)]
    steps = steps.merge(counted(cell)[KEYS], on=KEYS).sort_values([*KEYS, "step"])
    tokens = steps["emitted"] - steps["overshoot"]
    begin = tokens.groupby([steps[key] for key in KEYS], sort=False).cumsum() - tokens
    return steps.assign(begin=begin, kept=tokens, levels=steps.get("levels", 0))


def plain(
    title: str, lines: Sequence[Mapping[str, str]], notes: Sequence[str] = (), labels: int = 1
) -> list[TextTable]:
    """Return a table of lines by heading; a narrow terminal drops the last columns first. No lines, no table.

    Args:
        labels: number of columns that name a row.
    """
    if not lines:
        return []
    columns = tuple(Column(heading, heading, rank=max(0, i - labels + 1)) for i, heading in enumerate(lines[0]))
    return [TextTable(title, columns, [list(line.values()) for line in lines], list(notes))]


def by_group(
    title: str, lines: Iterable[tuple[CellGroup, Mapping[str, str]]], notes: Sequence[str] = ()
) -> list[TextTable]:
    """Return a table of the lines of each group, whose heading says model, type, temperature, data and number."""
    groups: dict[str, list[Mapping[str, str]]] = {}
    for group, line in lines:
        groups.setdefault(group.title, []).append(line)
    return [table for name in groups for table in plain(f"{title} | measured on {name}", groups[name], notes)]


DISTANCES = ("set.fid", "set.clean_fid_256", "set.kid")
"""Scores of a set of pictures against a reference."""


def scorer_notes(store: Store, cells: pd.DataFrame, keys: Iterable[str]) -> list[str]:
    """Return by which network, and against which pictures, the scores of these keys were computed."""
    said: dict[str, None] = {}
    for key in dict.fromkeys(key for key in keys if key in cells):
        for name, row in cells[cells[key].notna()].iterrows():
            params = store.cell(str(name)).meta.task_params
            if key == "set.clip_score" and (model := params.get("clip_model")):
                read = [f"pictures {params['clip_resize']}"] if params.get("clip_resize") else []
                read += [f"captions behind {params['clip_prefix']!r}"] if params.get("clip_prefix") else []
                said[f"measured CLIP of {row['task']}: {', '.join([model, *read])}"] = None
            elif key in DISTANCES and (reference := params.get("reference")):
                said[f"measured {key.removeprefix('set.')} of {row['task']}: against {Path(reference).name}"] = None
    return list(said)


def over_seeds(rows: pd.DataFrame) -> str:
    """Return a note that intervals are over seeds, if every cell decoded one prompt, or "" otherwise."""
    seeds = int(rows["n_ok"].max())
    return f"one prompt: intervals are over its {seeds} seeds" if rows["prompts"].max() == 1 and seeds > 1 else ""
