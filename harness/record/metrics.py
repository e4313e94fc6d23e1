"""One definition of every metric: a ratio of two totals over samples.

The bootstrap over prompts, paired differences and tables read the same definition. Totals are per sample; the raw
steps stay in the store, so that any other tool's convention can be derived by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stridebench.harness.record.columns import FORCED, STARTS
from stridebench.harness.record.entries import CellMeta


@dataclass(frozen=True)
class Metric:
    """A ratio of two totals.

    Args:
        name: as in tables.
        formula: as printed.
        numerator: a column of ``totals``.
        denominator: a column of ``totals``.
        unit: of the ratio.
        minus: subtracted from the ratio (1 for tau - 1).
    """

    name: str
    formula: str
    numerator: str
    denominator: str
    unit: str = ""
    minus: float = 0.0


METRICS = {
    metric.name: metric
    for metric in (
        Metric("scr", "output tokens / NFE", "output", "nfe", "tokens/pass"),
        Metric("completion_per_pass", "tokens up to the end of text / NFE", "completion", "nfe", "tokens/pass"),
        Metric("tau", "output tokens / steps", "output_of_steps", "steps", "tokens/step"),
        Metric("tau_minus_1", "output tokens / steps - 1", "output_of_steps", "steps", "tokens/step", minus=1.0),
        Metric("acceptance", "accepted / tested (along the tested path)", "free_accepted", "free_tested"),
        Metric("acceptance_per_node", "accepted / drafted", "free_accepted", "free_drafted"),
        Metric("expected_per_node", "expected accepted / drafted", "free_expected", "free_drafted"),
        Metric("nfe_per_output", "NFE / output tokens", "nfe", "output", "passes/token"),
        Metric("reused", "reused drafts / steps", "reused", "steps"),
        Metric("unique_drafted", "(drafted - reused) / steps", "unique_drafted", "steps", "nodes/step"),
        Metric("mean_tree_depth", "levels of drafts / steps", "levels", "steps", "levels/step"),
        Metric("mean_levels_built", "levels built / steps", "levels_built", "steps", "levels/step"),
        Metric("draft_nfe", "drafter passes / steps", "draft_nfe", "steps"),
        Metric("start_nfe", "target passes in start / outputs", "start_nfe", "outputs", "passes"),
        Metric("loss", "sum of TV(pi, p) of the tokens' rows / output tokens x 100", "loss_percent", "output"),
        Metric("logprob", "mean log p(token), target at T = 1", "logprob", "output", "nat"),
        Metric("step_ms", "step wall time / steps", "step_wall_ms", "steps", "ms"),
        Metric("start_ms", "start wall time / outputs", "start_ms", "outputs", "ms"),
        Metric("ms_per_token", "start and step wall time / output tokens", "wall_ms", "output", "ms"),
        Metric("tokens_per_second", "output tokens / start and step wall time", "output", "wall_s", "1/s"),
        Metric(
            "throughput",
            "output tokens / (start + Σ(step wall time / rows that shared it))",
            "output",
            "share_s",
            "1/s",
        ),
        Metric("peak_mb", "peak memory of a decode / outputs", "peak_mb", "outputs", "MB"),
        Metric("cpu_joules_per_token", "energy of the processor / output tokens", "cpu_joules", "output", "J/token"),
        Metric("gpu_joules_per_token", "energy of the GPU / output tokens", "gpu_joules", "output", "J/token"),
    )
}


SUMMED = (
    *("nfe", "draft_nfe", "drafted", "tested", "accepted", "expected", "emitted", "forced", "overshoot"),
    *("resampled", "levels", "reused", "wall_ns"),
)
"""Columns of steps that `totals` adds up."""


def counted_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of samples.parquet that ended well and are not warm-ups, indexed by (prompt, repetition)."""
    good = samples[((samples["status"] == "ok") & ~samples["warmup"]).to_numpy(dtype=bool)]
    return good.set_index(["prompt", "repetition"])


def totals(samples: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return `sums_of` the counted samples among rows of samples.parquet."""
    return sums_of(counted_samples(samples), steps)


def sums_of(counted: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row a counted sample, indexed by (prompt, repetition).

    Args:
        counted: of `counted_samples`.
        steps: rows of steps.parquet.

    Returns:
        Columns cluster (the prompt's, a text), output, output_of_steps (the same; NaN if a step is several
        rounds, such as a band of MuLo-SD, so that output / steps is not an acceptance length), completion
        (tokens up to the end of text), outputs (1), steps, nfe, draft_nfe, drafted, tested, accepted, expected,
        emitted, forced, overshoot, reused, resampled, levels, levels_built (NaN if a step did not store it),
        loss_percent (a hundred times the loss; NaN alike), unique_drafted (drafted and not reused), wall_ms, wall_s,
        share_s (the output's share of its batch's time), step_wall_ms, start_ms, start_nfe, logprob, agreement,
        prefill_ms, peak_mb, cpu_joules and gpu_joules (NaN if the machine does not tell); and drafted, tested, accepted
        and expected without the forced ones as free_drafted and so on. The method's start is in nfe, draft_nfe,
        wall_ms, wall_s and
        share_s.
    """
    good = counted.reset_index(drop=True)  # a column of a frame with two levels of index is slow to read
    sums = _Sums(steps, counted.index)
    column: dict[str, Any] = {name: sums.of(steps[name]) for name in (*SUMMED, *FORCED)}
    column["share_ns"] = sums.of(steps["wall_ns"] / steps["served"])
    column["cluster"] = good["cluster"].to_numpy()
    column["levels_built"] = sums.complete(steps["levels_built"]) if "levels_built" in steps else np.nan
    column["loss_percent"] = 100 * sums.complete(steps["loss"]) if "loss" in steps else np.nan
    column["unique_drafted"] = column["drafted"] - column["reused"]
    for name in ("drafted", "tested", "accepted"):
        column[f"free_{name}"] = column[name] - column.pop(f"forced_{name}")
    column["free_expected"] = column["expected"] - column["accepted"] + column["free_accepted"]
    column["steps"] = sums.steps
    column["output"] = np.array([len(tokens) for tokens in good["tokens"]], dtype=np.int64)
    column["output_of_steps"] = np.where(_several_rounds(steps), np.nan, column["output"])
    column["completion"] = _floats(good["completion"])
    column["outputs"] = np.ones(len(good), dtype=np.int64)
    start_ns, column["start_nfe"], start_draft_nfe = (good[name].to_numpy() for name in STARTS)
    column["start_ms"] = start_ns / 1e6
    column["nfe"] = column["nfe"] + column["start_nfe"]
    column["draft_nfe"] = column["draft_nfe"] + start_draft_nfe
    column["step_wall_ms"] = column.pop("wall_ns") / 1e6
    column["wall_ms"] = column["step_wall_ms"] + column["start_ms"]
    column["wall_s"] = column["wall_ms"] / 1e3
    column["share_s"] = (column.pop("share_ns") + start_ns) / 1e9
    column["logprob"] = np.array([np.sum(logprobs) for logprobs in good["logprobs"]], dtype=np.float64)
    column["agreement"] = _floats(good["agreement"])
    column["prefill_ms"] = good["prefill_ns"].to_numpy() / 1e6
    for name, stored, unit in (
        ("peak_mb", "peak_bytes", 1e6),
        *((f"{p}_joules", f"{p}_uj", 1e6) for p in ("cpu", "gpu")),
    ):
        column[name] = _floats(good[stored]) / unit if stored in good else np.nan
    return pd.DataFrame(column, index=counted.index)


def _floats(values: pd.Series[Any]) -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


class _Sums:
    """Adds up columns of the counted steps of each sample.

    Args:
        index: of the samples, by (prompt, repetition).
    """

    def __init__(self, steps: pd.DataFrame, index: pd.Index[Any]) -> None:
        owner = np.where(steps["warmup"].to_numpy(dtype=bool), -1, owners(steps, index))
        self._counted = owner >= 0
        self._owner, self._count = owner[self._counted], len(index)
        steps_of = np.bincount(self._owner, minlength=self._count)
        self._empty = steps_of == 0
        self.steps = self._known(steps_of)

    def of(self, values: pd.Series[Any]) -> NDArray[Any]:
        """Return the sums, NaN for a sample without a step; missing values are left out."""
        sums = self._added(np.nan_to_num(_floats(values)))
        return self._known(sums.astype(np.int64) if values.dtype.kind in "iu" else sums)

    def complete(self, values: pd.Series[Any]) -> NDArray[Any]:
        """Return the sums, NaN for a sample with a missing value."""
        return self._known(self._added(_floats(values)))

    def _added(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        added = np.bincount(self._owner, weights=values[self._counted], minlength=self._count)
        return np.asarray(added, dtype=np.float64)

    def _known(self, sums: NDArray[Any]) -> NDArray[Any]:
        return np.where(self._empty, np.nan, sums) if self._empty.any() else sums


def owners(steps: pd.DataFrame, keys: Iterable[Any]) -> NDArray[np.int64]:
    """Return the place in ``keys``, which are (prompt, repetition), of each step's sample, or -1 if it is not there.

    Steps of one sample are stored one after the other, so one look at each stretch suffices.
    """
    prompts, repetitions = (steps[name].to_numpy(dtype=object) for name in ("prompt", "repetition"))
    if not len(prompts):
        return np.zeros(0, dtype=np.int64)
    changes = (prompts[1:] != prompts[:-1]) | (repetitions[1:] != repetitions[:-1])
    begins = np.append(0, np.flatnonzero(changes) + 1)
    places = {key: place for place, key in enumerate(keys)}
    own = [places.get((prompts[begin], repetitions[begin]), -1) for begin in begins]
    return np.repeat(np.array(own, dtype=np.int64), np.diff(np.append(begins, len(prompts))))


def _several_rounds(steps: pd.DataFrame) -> bool:
    """Return whether a step drew tokens in several passes of the target, beyond its accepted drafts and one more."""
    warm, nfe, emitted, accepted = (steps[name].to_numpy() for name in ("warmup", "nfe", "emitted", "accepted"))
    return bool((~warm.astype(bool) & (nfe > 1) & (emitted > accepted + 1)).any())


def value(metric: Metric, frame: pd.DataFrame | Mapping[str, NDArray[np.float64]]) -> float | None:
    """Return the metric over the rows of ``totals`` that have its numerator, or None if its denominator is 0 there."""
    above, below = (np.asarray(frame[name], dtype=np.float64) for name in (metric.numerator, metric.denominator))
    known = ~np.isnan(above)
    total = float(np.nansum(below[known]))
    return float(above[known].sum()) / total - metric.minus if total else None


@dataclass(frozen=True)
class Depth:
    """Acceptance at one depth of a chain, from 1.

    Args:
        marginal: steps that kept a node at this depth / all steps.
        conditional: the same / steps that kept one at the depth above and drafted one here.
    """

    depth: int
    marginal: float
    conditional: float | None


def acceptance_by_depth(steps: pd.DataFrame) -> list[Depth]:
    """Marginal and conditional acceptance at each depth; 1 + the sum of marginals = emitted / steps."""
    accepted, drafted = steps["accepted"].to_numpy(), steps["drafted"].to_numpy()
    deepest = int(accepted.max()) if len(accepted) else 0
    rows = []
    for depth in range(1, deepest + 1):
        here = int((accepted >= depth).sum())
        reached = int(((accepted >= depth - 1) & (drafted >= depth)).sum())
        rows.append(Depth(depth, here / len(steps), here / reached if reached else None))
    return rows


# From which e-value on a sampler is refuted, in an audit, in a run and in the gate.


REFUTED = 1000.0
"""An e-value from which on a single sampler is refuted: a correct one reaches it once in a thousand audits."""


def refuting(cells: int) -> float:
    """The e-value that refutes one of so many samplers that are audited together, at least one.

    By the union bound, one correct run in a thousand has a cell that is refuted, whatever its cells have in common.
    """
    return REFUTED * max(cells, 1)


def refuting_in(metas: Iterable[CellMeta]) -> float:
    """The e-value that refutes a cell of a finished run, given the meta of each of its cells.

    It is the one that the run itself used.
    """
    audited = [meta for meta in metas if meta.claim == "SAME_LAW" and meta.audit_log_e is not None]
    stored = [meta.audit_threshold for meta in audited if meta.audit_threshold is not None]
    return max(stored, default=refuting(len(audited)))


@dataclass(frozen=True)
class Divergence:
    """Where two outputs diverge.

    Args:
        at: first differing index, or None if they are equal.
        agreement: longest common prefix / the longer length, 1 if equal.
    """

    at: int | None
    agreement: float


def diverge(output: Sequence[int], baseline: Sequence[int]) -> Divergence:
    """Compare an output with the baseline's. One that ends early differs at its end."""
    longest = max(len(output), len(baseline))
    for index in range(longest):
        if index >= min(len(output), len(baseline)) or output[index] != baseline[index]:
            return Divergence(index, index / longest)
    return Divergence(None, 1.0)
