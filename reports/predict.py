"""Predict the gain of a stored run on another machine, from its counts and a model of each pass.

By a data sheet a pass takes max(bytes / bandwidth, operations / rate) + launches (a roofline): a sheet has peaks, and a
GPU reads the next weights while it multiplies. By the passes of a measured CPU it takes the sum of both, and a time for
each layer and each row of a layer. Counts (passes, rows, tokens) are the run's; they do not depend on the machine. The
time of the host is that of the run's machine: each figure comes with one that leaves it out. Everything else is an
assumption of ``ASSUMPTIONS``, which `stride paper predict` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from stridebench.harness.errors import UsageError
from stridebench.harness.record import stats
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell, reader
from stridebench.reports.machines import LAYERS, Machine
from stridebench.reports.pareto import COLOURS, STYLE
from stridebench.reports.pareto import STYLE_MARKERS as MARKERS
from stridebench.reports.summary import measure
from stridebench.reports.tables import COLUMN

KERNELS = 10
"""Launches of a layer, where nothing else is said."""
LARGEST = 4096
"""The largest batch at which a gain is sought; a power of two."""
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}
ASSUMPTIONS = (
    "A pass reads every parameter of its model once, in the type of the cell.",
    "It makes 2 operations a parameter and row. The KV cache is not counted.",
    "By a data sheet it takes the longer of the two. By measured passes: their sum, and a time for each layer and each "
    "row of a layer.",
    "A pass of the target launches {kernels}; one of a drafter its share of them by size.",
    "A drafter's size relative to its target is the time of its pass relative to that of a baseline's pass in the run.",
    "A drafter reads one row a pass. Guidance reads every row once a branch, those of a drafter too.",
    "The host takes as long a step as in the run, for each decode of a batch; `no host` leaves its time out.",
    "The host's time is of the run's machine. On a CPU it holds the sampler's arithmetic on logits, which a GPU does.",
    "Outputs that the cell and its baseline both finished are counted.",
    "Passes that a method makes before its first step are not counted. Counts do not change with the batch.",
)


@dataclass(frozen=True)
class Counts:
    """The counts of a cell, a row a step.

    Args:
        draft_share: size of the drafter relative to the target.
        branches: how often guidance reads each row.
    """

    stored: str
    computed: str
    parameters: float
    passes: Any
    rows: Any
    drafts: Any
    host_s: Any
    draft_share: float
    tokens: int
    branches: int = 1
    layers: float = LAYERS

    def seconds_per_token(self, on: Machine, batch: int, kernels: float, host: bool = True) -> float:
        """Of one of the decodes of a batch; arguments and errors of ``seconds``."""
        return float(self.seconds(on, batch, kernels, host).sum()) / self.tokens

    def seconds(self, on: Machine, batch: int, kernels: float, host: bool = True) -> Any:
        """Of each step of one of the decodes of a batch."""
        copies = batch * self.branches
        rows = self.rows / np.maximum(self.passes, 1) * copies
        of, share = (self.stored, self.computed), self.draft_share
        target = self.passes * on.pass_s(self.parameters, *of, rows, kernels, self.layers)
        draft = on.pass_s(self.parameters * share, *of, copies, kernels * share, self.layers * share)
        return target + self.drafts * draft + (self.host_s * batch if host else 0.0)


def parameters_of(size: str | None) -> float | None:
    """Parameters that the text of a preset begins with, such as "135 M; 93 MB", or None if it states none."""
    found = re.match(r"([\d.]+) ([kMB])\b", size or "")
    return float(found[1]) * _UNITS[found[2]] if found else None


def counts_of(cell: FinishedCell, outputs: pd.Index[Any], one_row_s: float | None, parameters: float) -> Counts:
    """The counts of some outputs of a finished cell.

    Args:
        one_row_s: mean seconds of the baseline's passes over the same outputs, or None if nothing was timed.
    """
    steps = _steps(cell, outputs)
    tokens, drafts = int((steps["emitted"] - steps["overshoot"]).sum()), float(steps["draft_nfe"].sum())
    if not tokens:
        raise UsageError("no step was counted")
    if drafts and not one_row_s:
        raise UsageError("the size of its drafter follows from times, and its run was not timed")
    meta = cell.cell.meta
    branches = meta.branches or (None if meta.modality == "image" else 1)
    if branches is None:
        raise UsageError("its record does not say whether guidance reads every row twice; it is older, run it again")
    dtype, backbone = meta.dtype, meta.backbone
    weights = re.search(r"weights=(int\d|nf4)", backbone)
    share = float(steps["draft_ns"].sum()) / 1e9 / drafts / one_row_s if drafts and one_row_s else 0.0
    host = (steps["host_ns"] + steps["verify_ns"]).to_numpy() / 1e9
    passes, rows, draft_passes = (steps[name].to_numpy(dtype=float) for name in ("nfe", "rows", "draft_nfe"))
    stored, layers = weights[1] if weights else dtype, float(meta.layers or LAYERS)
    return Counts(stored, dtype, parameters, passes, rows, draft_passes, host, share, tokens, branches, layers)


def _by_output(cell: FinishedCell, outputs: pd.Index[Any], seconds: Any) -> Any:
    """Seconds a token of each output, of those of its counted steps; NaN if an output has no token."""
    steps = _steps(cell, outputs)
    numbers = outputs.get_indexer(pd.MultiIndex.from_frame(steps[["prompt", "repetition"]]))
    tokens = np.bincount(numbers, weights=steps["emitted"] - steps["overshoot"], minlength=len(outputs))
    tokens = np.where(tokens > 0, tokens, np.nan)
    return np.bincount(numbers, weights=seconds, minlength=len(outputs)) / tokens


def _steps(cell: FinishedCell, outputs: pd.Index[Any]) -> pd.DataFrame:
    steps = cell.cell.steps[~cell.cell.steps["warmup"].astype(bool)]
    return steps[pd.MultiIndex.from_frame(steps[["prompt", "repetition"]]).isin(outputs)]


def predict(
    store: Store, on: Machine, batch: int = 1, kernels: float | None = None, measured: bool = False
) -> pd.DataFrame:
    """One row a finished cell of a method: its predicted speed-up, and the batches that gain.

    Args:
        kernels: launches of a pass, or None for ``KERNELS`` a layer.
        measured: the run's speed-up too; none if the run was not timed (``timing: off``).

    Returns:
        Columns cell, label, backbone, dtype, task, temperature, verdict (as a report words it), flags, predicted (with
        the host's time; None if the run was not timed), predicted_median (of the outputs, which a measured speed-up
        is too; predicted itself is of all tokens), predicted_no_host, host_share (of the predicted time), gains and
        gains_no_host (ranges of batches, each [first, last]), outputs (how many are counted), measured, and reason
        if a cell cannot be predicted.
    """
    read, sealed = reader(store), set(store.cells())
    rows = []
    for name in store.cells():
        cell = read(name)
        meta = cell.cell.meta
        if meta.status != "done" or cell.role != "method":
            continue
        base, floor = (read(other) if other in sealed else None for other in (meta.baseline, meta.floor))
        told = measure(cell, base, floor)
        row = {key: told[key] for key in ("cell", "label", "backbone", "dtype", "task", "temperature", "flags")}
        row["verdict"] = COLUMN["verdict"].text(told)
        row |= dict.fromkeys(
            ("predicted", "predicted_median", "predicted_no_host", "host_share", "gains", "gains_no_host", "outputs")
        )
        row |= {"measured": told.get("speedup") if measured else None, "reason": None}
        try:
            row |= _figures(cell, base, _parameters(store, cell), on, batch, kernels)
        except UsageError as error:
            row["reason"] = str(error)
        rows.append(row)
    return pd.DataFrame(rows, dtype=object)  # so that what is missing stays None


def _parameters(store: Store, cell: FinishedCell) -> float:
    """The parameters of a cell's backbone; raises a UsageError if the run does not state them."""
    known = parameters_of(store.manifest.sizes.get(cell.cell.meta.backbone.partition(":")[0]))
    if known is None:
        raise UsageError("its backbone states no size")
    return known


def _figures(
    cell: FinishedCell, base: FinishedCell | None, parameters: float, on: Machine, batch: int, kernels: float | None
) -> dict[str, object]:
    """The figures of a row; raises a UsageError if there are none."""
    if base is None:
        raise UsageError("its baseline is not finished")
    outputs = cell.samples.index.intersection(base.samples.index)
    if not len(outputs):
        raise UsageError("no output was finished by it and its baseline")
    timed = all(side.cell.meta.timed for side in (cell, base))
    steps = _steps(base, outputs)
    passes = float(steps["nfe"].sum())
    one_row_s = float(steps["target_ns"].sum()) / 1e9 / passes if timed and passes else None
    plain, ours = (counts_of(side, outputs, one_row_s, parameters) for side in (base, cell))

    launches = KERNELS * ours.layers if kernels is None else kernels

    def gain(batch: int, host: bool) -> float:
        seconds = [side.seconds_per_token(on, batch, launches, host) for side in (plain, ours)]
        return seconds[0] / seconds[1]

    figures: dict[str, Any] = {"outputs": len(outputs), "predicted_no_host": gain(batch, host=False)}
    figures["gains_no_host"] = gains(lambda batch: gain(batch, host=False))
    if timed:
        without, total = (ours.seconds_per_token(on, batch, launches, host) for host in (False, True))
        figures |= {"predicted": gain(batch, host=True), "host_share": 1 - without / total}
        figures["gains"] = gains(lambda batch: gain(batch, host=True))
        above, below = (
            _by_output(side, outputs, counts.seconds(on, batch, launches))
            for side, counts in ((base, plain), (cell, ours))
        )
        figures["predicted_median"] = float(np.nanmedian(above / below))
    return figures


def gains(gain: Callable[[int], float]) -> list[tuple[int, int]]:
    """Return ranges of batches, first and last, with a gain, up to ``LARGEST``; an empty list if there is none.

    All powers of two are tried. The ends of a range lie between them, where the gain is taken to pass 1 once.
    """
    powers = [2**k for k in range(LARGEST.bit_length())]
    won = {batch: gain(batch) > 1 for batch in powers}
    ranges: list[tuple[int, int]] = []
    first = 1 if won[1] else None
    for low, high in pairwise(powers):
        if won[low] == won[high]:
            continue
        inside, outside = low, high
        while outside - inside > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if (gain(middle) > 1) == won[low] else (inside, middle)
        if first is None:
            first = outside
        else:
            ranges.append((first, inside))
            first = None
    return ranges if first is None else [*ranges, (first, LARGEST)]


def why_nothing(store: Store, frame: pd.DataFrame) -> str | None:
    """Return why no cell of ``predict``'s rows has a figure, or None if one has."""
    if frame.empty:
        engines = " (engines count no passes)" if store.manifest.engines else ""
        return f"it lacks a finished cell of a method{engines}"
    reasons = frame["reason"]
    return "; ".join(reasons.unique()) if reasons.notna().all() else None


@dataclass(frozen=True)
class Scatter:
    """Predicted against measured: the median and the largest of |predicted / measured - 1|, and whose that is.

    Both are medians over outputs.
    """

    cells: int
    median: float
    worst: float
    worst_cell: str


def scatter(frame: pd.DataFrame) -> Scatter | None:
    """Return how far predictions are from measurements, or None if no cell has both."""
    both = frame.dropna(subset=["predicted_median", "measured"]) if len(frame) else frame
    if not len(both):
        return None
    errors = (both["predicted_median"].astype(float) / both["measured"].astype(float) - 1).abs()
    worst = int(errors.to_numpy().argmax())
    return Scatter(len(both), float(errors.median()), float(errors.max()), str(both["cell"].iloc[worst]))


# The picture of `stride paper predict --measured`: predicted over measured speed-ups, both axes logarithmic.


FAR = 0.25
"""Relative error beyond which a cell is named in the picture."""


def draw(frame: pd.DataFrame, path: Path, title: str) -> None:
    """Write the picture of cells that have both figures.

    Args:
        frame: of ``predict`` with measured speed-ups; at least one row has both.
    """
    both = frame.dropna(subset=["predicted_median", "measured"]).astype({"predicted_median": float, "measured": float})
    spread = scatter(frame)
    assert spread is not None
    with rc_context(STYLE):
        figure = Figure(figsize=(5.2, 4.8), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        ends = np.array(
            [
                both[["predicted_median", "measured"]].min().min() / 1.2,
                both[["predicted_median", "measured"]].max().max() * 1.2,
            ]
        )
        axes.plot(ends, ends, color="0.6", lw=0.9)
        axes.fill_between(ends, ends * (1 - FAR), ends * (1 + FAR), color="0.92", label=f"within {FAR:.0%}")
        for place, (backbone, cells) in enumerate(both.groupby("backbone", sort=True)):
            colour = COLOURS[place % len(COLOURS)]
            look: dict[str, Any] = {"color": colour, "marker": MARKERS[colour], "ls": "", "ms": 4.5, "alpha": 0.85}
            axes.plot(cells["measured"], cells["predicted_median"], label=str(backbone), **look)
        far = both[(both["predicted_median"] / both["measured"] - 1).abs() > FAR]
        for _, cell in far.iterrows():
            axes.annotate(
                cell["label"],
                (cell["measured"], cell["predicted_median"]),
                fontsize=6,
                xytext=(4, 2),
                textcoords="offset points",
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.set(xlabel="measured speed-up", ylabel="predicted speed-up")
        ticks = [2.0**power for power in range(-6, 7) if ends[0] <= 2.0**power <= ends[1]]
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_minor_locator(NullLocator())
        figures = f"{spread.cells} cells, median error {spread.median:.1%}, worst {spread.worst:.0%}"
        axes.set_title(f"{title}: {figures}", fontsize=8)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


# The settings that `stride report --what-if` weighs, on the run's own machine.


@dataclass(frozen=True)
class StepPrices:
    """Milliseconds of the parts of a step, as a run measured them.

    Args:
        row: a pass of the target over one row.
        window_costs: rows of a pass and its cost, ascending; only their ratios count.
        draft: a pass of the drafter, with the host's work on it.
        host: the rest of the host's work, that of a step of the baseline.
    """

    row: float
    window_costs: list[list[float]]
    draft: float
    host: float

    @classmethod
    def of(cls, cell: FinishedCell, base: FinishedCell) -> StepPrices | None:
        """Return those of a drafter's cell and its baseline, or None if they or the passes were not timed."""
        curve, drafts = cell.cell.meta.window_costs, float(cell.steps["draft_nfe"].sum())
        if not (cell.cell.meta.timed and base.cell.meta.timed and len(curve) > 1 and drafts):
            return None
        host, more = (float((one.steps["host_ns"] + one.steps["verify_ns"]).mean()) / 1e6 for one in (base, cell))
        row = float(base.steps["target_ns"].sum() / base.steps["nfe"].sum()) / 1e6
        draft = float(cell.steps["draft_ns"].sum()) / 1e6 / drafts
        return cls(row, curve, draft + max(0.0, more - host) * len(cell.steps) / drafts, host)

    def step(self, drafted: int, passes: int) -> float:
        """Return the milliseconds of a step of so many drafts, by so many passes of the drafter."""
        sizes, costs = np.array(self.window_costs, dtype=float).T
        rows = drafted + 1
        slope = (costs[-1] - costs[-2]) / (sizes[-1] - sizes[-2])
        cost = np.interp(rows, sizes, costs) + slope * max(0.0, rows - sizes[-1])
        return float(self.row * cost / np.interp(1, sizes, costs)) + passes * self.draft + self.host


def weighed(store: Store, cell: str, settings: Mapping[str, Mapping[tuple[str, int], Any]]) -> pd.DataFrame:
    """One row a setting that was weighed along the texts of a cell's baseline, the fastest first.

    Args:
        settings: `ExpectedSteps` by prompt and repetition, by the setting's label.

    Returns:
        Columns cell, setting, fixed (whether only the length is set), tau with tau_low and tau_high (tokens a step),
        drafted and draft_nfe (a step), and if the run was timed ms_per_token, speedup (over the baseline, by the same
        prices) and regret (time over that of the best fixed length, less one); else None.
    """
    read = reader(store)
    drafter, base = read(cell), read(str(store.meta(cell).baseline))
    prices = StepPrices.of(drafter, base)
    rows: list[dict[str, Any]] = []
    for label, outputs in settings.items():
        index = pd.MultiIndex.from_tuples(list(outputs), names=["prompt", "repetition"])
        frame = pd.DataFrame({"tokens": [one.tokens for one in outputs.values()]}, index).assign(
            steps=[one.steps for one in outputs.values()], cluster=base.samples["cluster"].reindex(index)
        )
        steps, tokens = (float(frame[name].sum()) for name in ("steps", "tokens"))
        interval = stats.ratio(frame, "tokens", "steps")
        by_draft = [(draft, count) for one in outputs.values() for draft, count in one.by_draft.items()]
        drafted, passes = (sum(draft[part] * count for draft, count in by_draft) / steps for part in (0, 1))
        row = {"cell": cell, "setting": label, "fixed": "policy=" not in label, "tau": tokens / steps}
        row |= {"tau_low": interval and interval.low, "tau_high": interval and interval.high}
        row |= {"drafted": drafted, "draft_nfe": passes, "ms_per_token": None, "speedup": None, "regret": None}
        if prices is not None:
            ms = sum(count * prices.step(*draft) for draft, count in by_draft) / tokens
            row |= {"ms_per_token": ms, "speedup": prices.step(0, 0) / ms}
        rows.append(row)
    if prices is not None:
        best = min(row["ms_per_token"] for row in rows if row["fixed"])
        rows = [row | {"regret": row["ms_per_token"] / best - 1} for row in rows]
    order, ascending = ("tau", False) if prices is None else ("ms_per_token", True)
    return pd.DataFrame(rows, dtype=object).sort_values(order, ascending=ascending, kind="stable", ignore_index=True)
