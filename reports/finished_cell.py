"""A finished cell as reports read it: its counted samples, their totals, and the steps that something else slowed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stridebench.harness.errors import printable_line
from stridebench.harness.record import paired_tests, stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.columns import SCORER_FAILED
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import METRICS, counted_samples, sums_of
from stridebench.harness.record.store import Store

WAITED, WAITING_STEPS = 0.05, 0.1
"""A step is disturbed if threads waited for a core for this share of its time; a cell, if so many steps are."""
SLOW_CLOCK = 0.9
"""A step is disturbed if the GPU's clock is below this share of the highest clock of the cell's steps."""


Row = dict[str, object]


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell, its counted samples by (prompt, repetition), and their totals."""

    cell: SealedCell
    samples: pd.DataFrame

    @staticmethod
    def of(cell: SealedCell) -> FinishedCell:
        """Return it with the samples that ended well and are not warm-ups."""
        return FinishedCell(cell, counted_samples(cell.samples))

    @cached_property
    def totals(self) -> pd.DataFrame:
        """``metrics.totals``; the log-probability is missing if not every token of the output has one."""
        sums = sums_of(self.samples, self.cell.steps)
        lengths = zip(sums["output"], self.samples["logprobs"], strict=True)
        measured = np.array([len(logprobs) == tokens for tokens, logprobs in lengths], dtype=bool)
        return sums.assign(logprob=np.where(measured, sums["logprob"], np.nan))

    @cached_property
    def figures(self) -> Mapping[str, NDArray[np.float64]]:
        """The columns of ``totals`` as arrays, since a frame is slow to read."""
        numbers = self.totals.drop(columns="cluster")
        return dict(zip(map(str, numbers.columns), numbers.to_numpy(dtype=np.float64).T, strict=True))

    @property
    def rows_of_a_pass(self) -> float:
        """Rows that a pass of the target read, on average; nan if there was none."""
        return float(self.steps["rows"].sum()) / float(self.steps["nfe"].sum() or np.nan)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps that are not of warm-ups."""
        return counted(self.cell.steps)

    @cached_property
    def unigrams(self) -> dict[str, paired_tests.TwoSample | None]:
        """Tests of the tokens against those of other cells, by their ids, as they were asked for."""
        return {}

    @cached_property
    def gains(self) -> dict[str, stats.Interval | None]:
        """Speed-ups of other cells over this one, by their ids, as they were asked for."""
        return {}

    @property
    def temperature(self) -> float:
        """The temperature of sampling; 0 is greedy."""
        return self.cell.meta.sampling.temperature

    @property
    def scores(self) -> pd.DataFrame:
        """The task's scores of each sample, one column a name; no column if the score of a sample failed."""
        if self.unscored:
            return pd.DataFrame(index=self.samples.index)
        rows = [json.loads(scores) if scores else {} for scores in self.samples["scores"]]
        return pd.DataFrame(rows, index=self.samples.index).astype(float)

    @cached_property
    def unscored(self) -> int:
        """Return how many counted samples lack a score because the task's scorer failed."""
        errors = zip(self.cell.samples["error"], self.cell.samples["warmup"], strict=True)
        return sum(isinstance(error, str) and error.startswith(SCORER_FAILED) and not warm for error, warm in errors)

    @property
    def role(self) -> str:
        """One of: method, baseline, floor (the second autoregressive set)."""
        return self.cell.meta.role


def task_words(cells: Mapping[str, CellMeta]) -> dict[str, str]:
    """Return the task of each cell, by id: its name, and the settings in which uses of it in this run differ."""
    uses = {name: {**meta.task_params, "chat": meta.chat} for name, meta in cells.items()}
    differing = {}
    for task in {meta.task for meta in cells.values()}:
        own = [use for name, use in uses.items() if cells[name].task == task]
        keys = dict.fromkeys(key for use in own for key in use)
        differing[task] = [key for key in keys if len({repr(use.get(key)) for use in own}) > 1]

    def words(name: str, task: str) -> str:
        return " ".join([task, *(f"{key}={uses[name][key]}" for key in differing[task] if key in uses[name])])

    return {name: printable_line(words(name, meta.task)) for name, meta in cells.items()}


def counted(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that are not of warm-ups."""
    warm = steps["warmup"].to_numpy(dtype=bool)
    return steps[~warm] if warm.any() else steps


def reader(store: Store) -> Callable[[str], FinishedCell]:
    """Return the finished cell of a name; each is read and added up once."""
    return cache(lambda name: FinishedCell.of(store.cell(name)))


def disturbed_share(steps: pd.DataFrame) -> float:
    """Return the share of counted steps that something else slowed.

    In such a step threads waited for a core, another process computed on the GPU, or its clock was a tenth below the
    highest of the cell.
    """
    wait, wall, foreign, mhz = (
        counted(steps)[name].to_numpy() for name in ("wait_ns", "wall_ns", "foreign", "gpu_mhz")
    )
    if not len(wall):
        return 0.0
    slowed = (wait > WAITED * wall) | (foreign > 0) | (mhz < SLOW_CLOCK * mhz.max())
    return float(slowed.mean())


def cause_of_waits(steps: pd.DataFrame) -> str:
    """Return what disturbed steps may have met."""
    on_gpu = len(steps) and steps["gpu_mhz"].max() > 0
    return "threads waited, or the GPU was shared or slow," if on_gpu else "threads waited for a core"


def stopped_steps(steps: pd.DataFrame) -> str:
    """Return in how many of some steps the process was stopped, and for how long together; "" if it never was."""
    stops = steps["stopped_ns"].to_numpy()
    if not stops.sum():
        return ""
    return f"{(stops > 0).sum()} of {len(stops)} steps, for {stops.sum() / 1e9:.1f} s together"


def token_ms(frame: pd.DataFrame) -> pd.Series[float]:
    """Return milliseconds per output token, by sample."""
    metric = METRICS["ms_per_token"]
    return frame[metric.numerator] / frame[metric.denominator]
