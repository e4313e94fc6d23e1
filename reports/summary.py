"""The summary of a run: one row a cell, with every number that a table, a figure or a comparison shows.

Metrics are defined in ``metrics.METRICS`` alone. An estimate ``x`` has the columns x, x_low, x_high and x_n, the number
of prompts behind it. x_low is missing if there are fewer than six prompts (four for agreement). Speed is compared
with the autoregressive baseline of the same run, paired by prompt and seed. It is compared per output token, because
sampled outputs differ in length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stridebench.harness.errors import printable_line
from stridebench.harness.record import paired_tests, stats
from stridebench.harness.record.entries import SAMPLING, CellMeta
from stridebench.harness.record.metrics import METRICS, owners, value
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import (
    FinishedCell,
    Row,
    cause_of_waits,
    disturbed_share,
    reader,
    stopped_steps,
    task_words,
    token_ms,
)
from stridebench.reports.flags import FAILED_SHARE, cluster_flags, disturbed_flags, measured_flags, mismatch_flags

INTERVALS = ("scr", "tau", "acceptance", "acceptance_per_node", "ms_per_token", "throughput", "logprob")
"""Metrics shown with an interval."""
CONSUMED = ("peak_mb", "cpu_joules_per_token", "gpu_joules_per_token")
PLAIN = (
    *("expected_per_node", "nfe_per_output", "reused", "draft_nfe", "loss", "tokens_per_second", "start_nfe"),
    *("start_ms", *CONSUMED),
)
"""Metrics shown without an interval."""

AUDIT = ("audit_log_e", "audit_tokens", "audit_visible_tv", "audit_needed", "audit_best", "audit_reason")
"""Entries of a cell's meta on the bets against it; None at T = 0 and in runs made before there were any."""

DRAFTER = (
    "drafter_places",
    "drafter_tv",
    "drafter_tv_limit",
    "drafter_acceptance",
    "drafter_acceptance_anew",
    "drafter_reason",
)
"""Entries of a cell's meta on drafts that were made anew; None if the method drafts nothing."""

QUANTISATION = ("quantisation_kl", "quantisation_agreement")
"""Entries of a cell's meta on the cost of rounded weights; None if they are not quantised."""

_OF_TIME = (
    "speedup",
    "predicted",
    "ms_per_token",
    "throughput",
    "tokens_per_second",
    "cpu_joules",
    "gpu_joules",
    "drafter_c",
)
"""Columns that hold seconds, or energy that other work has a part in, as have those that end in _ms."""
ADAPTED = "its adapter was trained for full weights and is added to"
_FLAGS_OF_TIME = ("disturbed", "mismatch")


def summarise(store: Store, read: Callable[[str], FinishedCell] | None = None) -> pd.DataFrame:
    """Return one row a cell of the manifest, in its order. Skipped and unfinished cells have a reason.

    Args:
        read: of ``reader``, if the caller goes on with the cells.
    """
    sealed = set(store.cells())
    read = reader(store) if read is None else read
    rows = [
        row_of(name, sealed, read) if name in sealed else _identity(name, planned) | {"n_skipped": planned.expected}
        for name, planned in store.manifest.cells.items()
    ]
    if not rows:
        return pd.DataFrame(columns=list(_identity("", CellMeta())))
    return pd.DataFrame(rows).assign(task=list(task_words(store.manifest.cells).values()))


def row_of(name: str, sealed: Collection[str], read: Callable[[str], FinishedCell]) -> Row:
    """Return the row of a finished cell, compared with the baseline and the floor of its run if they are finished."""
    references = (getattr(read(name).cell.meta, role) for role in ("baseline", "floor"))
    base, floor = (read(reference) if reference in sealed else None for reference in references)
    return measure(read(name), base, floor)


def by_category(store: Store, read: Callable[[str], FinishedCell] | None = None) -> pd.DataFrame:
    """Return one row a cell and category of its prompts; empty if the tasks name no category.

    Args:
        read: of ``reader``, if the caller goes on with the cells.
    """
    sealed = set(store.cells())
    read = reader(store) if read is None else read
    rows, tasks = [], task_words(store.manifest.cells)
    for name in store.cells():
        finished = read(name)
        base = finished.cell.meta.baseline
        for category in sorted(set(finished.samples["category"]) - {""}):
            frame = finished.totals[finished.samples["category"] == category]
            row = {**_identity(name, finished.cell.meta), "task": tasks[name], "category": category}
            row["n_ok"] = len(frame)
            for metric in ("scr", "tau", "acceptance"):
                set_interval(row, metric, metric_interval(metric, frame))
            rows.append(row | _speed(frame, read(base) if base in sealed else None))
    return pd.DataFrame(rows)


def metric_interval(name: str, frame: pd.DataFrame) -> stats.Interval | None:
    """Compute a metric over rows of totals, with its interval."""
    metric = METRICS[name]
    return stats.ratio(frame, metric.numerator, metric.denominator, metric.minus)


def set_interval(row: Row, name: str, interval: stats.Interval | None) -> None:
    """Write an interval into the four columns of ``name``. Without an interval nothing is written."""
    if interval:
        row |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
        row[f"{name}_n"] = interval.n


def measure(finished: FinishedCell, base: FinishedCell | None, floor: FinishedCell | None) -> Row:
    """Return the row of a finished cell, compared with its baseline and the second autoregressive set of its run."""
    cell, frame = finished.cell, finished.totals
    ok = len(finished.samples)
    failed = int((~cell.samples["warmup"]).sum()) - ok
    skipped = 0 if cell.meta.expected is None else cell.meta.expected - ok - failed
    row = _identity(cell.name, cell.meta)
    row |= {"n_ok": ok, "n_failed": failed, "n_run": ok + failed, "n_skipped": skipped}
    row |= {"nfe": float(frame["nfe"].sum())}
    metrics = [METRICS[name] for name in INTERVALS]
    terms = [(metric.numerator, metric.denominator, metric.minus) for metric in metrics]
    for name, interval in zip(
        INTERVALS, stats.ratios(finished.figures, frame.index, frame["cluster"], terms), strict=True
    ):
        set_interval(row, name, interval)
    row |= {name: value(METRICS[name], finished.figures) for name in PLAIN}
    row |= {"disturbed_steps": disturbed_share(finished.steps), "disturbed_by": cause_of_waits(cell.steps)}
    row["stopped"] = stopped_steps(finished.steps)
    row["shorter_passes"] = 1.0 if base is None else max(1.0, base.rows_of_a_pass / finished.rows_of_a_pass)
    row |= (
        _latency(finished.steps, frame) | _speed(frame, base) | _drafter_cost(finished, base) | _quality(finished, base)
    )
    drawn = finished.temperature > 0 and finished.role == "method" and row["audit_log_e"] is None
    if drawn and base is not None and floor is not None:
        row |= _two_sample(finished, base, floor)
    scores = cell.meta.set_scores.items()
    unmeasured = [f"{name} not measured: {score.reason}" for name, score in scores if score.value is None]
    if finished.unscored:
        unmeasured.append(f"scores not measured: the task's scorer failed on {finished.unscored} outputs")
    row |= {
        "flags": "; ".join(
            [
                *measured_flags(row, unmeasured, cell.samples, frame),
                *cluster_flags(frame),
                *([f"{ADAPTED} {_plain(cell.meta.adapter_on)} ones"] if cell.meta.adapter_on else []),
                *cell.meta.backbone_notes,
                *(disturbed_flags(row, base, floor) or mismatch_flags(row)),
            ]
        ),
        "valid": failed <= FAILED_SHARE * (ok + failed),
    }
    return row if cell.meta.timed else _without_seconds(row)


def _without_seconds(row: Row) -> Row:
    """Return the row of a cell whose run says ``timing: off``: other work may have shared its device."""
    flags = [flag for flag in str(row["flags"]).split("; ") if flag and not flag.startswith(_FLAGS_OF_TIME)]
    rest = {name: value for name, value in row.items() if not name.startswith(_OF_TIME) and not name.endswith("_ms")}
    return rest | {"flags": "; ".join([*flags, "not timed (timing: off)"])}


def _identity(name: str, meta: CellMeta) -> Row:
    words = ("method", "role", "claim", "source", "backbone", "dtype", "task", "max_new_tokens", "batch")
    verdict = meta.judged
    return {
        "cell": name,
        "label": _plain(meta.label or meta.method or name),
        **{word: _plain(getattr(meta, word)) for word in words},
        "params": json.dumps(meta.params, sort_keys=True),
        **{word: getattr(meta.sampling, word) for word in SAMPLING},
        "status": meta.status or "unfinished",
        "reason": _plain(meta.reason),
        "verdict": verdict.word,
        "total_variation": verdict.total_variation,
        "greedy": verdict.greedy,
        "note": verdict.note,
        **{column: _plain(getattr(meta, column)) for column in (*AUDIT, *DRAFTER, *QUANTISATION)},
        "flags": "",
    }


def _plain(value: Any) -> Any:
    """Text in one line that a terminal, a table and a plot can show; other values as they are."""
    return printable_line(value) if isinstance(value, str) else value


def _latency(steps: pd.DataFrame, frame: pd.DataFrame) -> Row:
    """Return the wall time of counted steps (p50 and p95) and the median of each of its phases, in ms."""
    own = owners(steps, frame.index) >= 0
    phases = {
        f"{phase}_ms": _quantiles(steps[f"{phase}_ns"].to_numpy()[own], 0.5)[0]
        for phase in ("draft", "target", "verify", "host")
    }
    median, high = _quantiles(steps["wall_ns"].to_numpy()[own], 0.5, 0.95)
    prefill = frame["prefill_ms"].median()
    return {"step_p50_ms": median, "step_p95_ms": high, **phases, "prefill_ms": prefill}


def _quantiles(ns: NDArray[Any], *levels: float) -> list[float]:
    """Return quantiles in ms; NaN if there are no values."""
    return [float(one) / 1e6 for one in np.quantile(ns, levels)] if len(ns) else [math.nan] * len(levels)


def _drafter_cost(finished: FinishedCell, base: FinishedCell | None) -> Row:
    """Return c of Leviathan et al. 2023: the mean pass of the drafter / the mean pass of the baseline's target."""
    if base is None:
        return {}
    drafts, targets = (
        {name: int(cell.steps[name].sum()) for name in (f"{kind}_ns", passes)}
        for cell, kind, passes in ((finished, "draft", "draft_nfe"), (base, "target", "nfe"))
    )
    if not drafts["draft_nfe"] or not targets["target_ns"]:
        return {}
    draft_ns, target_ns = drafts["draft_ns"] / drafts["draft_nfe"], targets["target_ns"] / targets["nfe"]
    return {"drafter_c": float(draft_ns / target_ns)}


def _speed(frame: pd.DataFrame, base: FinishedCell | None) -> Row:
    """Return the measured speed-up, and the one that tokens a step and mean step times of both cells predict."""
    if base is None or not frame["steps"].sum():
        return {}
    row: Row = {}
    same = base.totals.index.equals(frame.index)
    baseline = base.totals if same else base.totals[base.totals.index.isin(frame.index)]
    set_interval(row, "speedup", stats.median_ratio(token_ms(baseline), token_ms(frame), named=frame["cluster"]))
    per_step, step_ms = float(frame["output"].sum() / frame["steps"].sum()), _step_ms(frame)
    baseline_step_ms = _step_ms(baseline)
    if baseline_step_ms and step_ms:
        row["predicted"] = per_step * baseline_step_ms / step_ms
    return row


def _step_ms(frame: pd.DataFrame) -> float | None:
    """Return the mean time of a step with its share of the method's start, in ms."""
    return float(frame["wall_ms"].sum() / frame["steps"].sum()) if frame["steps"].sum() else None


def _quality(finished: FinishedCell, base: FinishedCell | None) -> Row:
    row: Row = {}
    if not finished.temperature:
        set_interval(
            row, "agreement", stats.bounded_mean(finished.totals["agreement"], named=finished.totals["cluster"])
        )
    logprobs = np.array([one for output in finished.samples["logprobs"] for one in output], dtype=np.float64)
    logprobs = logprobs[~np.isnan(logprobs)]
    row["logprob_std"] = float(logprobs.std(ddof=1)) if len(logprobs) > 1 else None
    if base is not None:
        set_interval(row, "logprob_diff", stats.difference(base.totals, finished.totals, "logprob", "output"))
    for name, values in finished.scores.items():
        set_interval(row, f"score.{name}", stats.score(values, named=finished.totals["cluster"]))
    return row | _set_scores(finished.cell.meta)


def _set_scores(meta: CellMeta) -> Row:
    """Return the scores of all outputs together, as the task measured them when the cell was sealed."""
    row: Row = {}
    for name, score in meta.set_scores.items():
        if score.value is not None:
            bounds = {f"set.{name}_low": score.low, f"set.{name}_high": score.high}
            row |= {f"set.{name}": score.value, **bounds, f"set.{name}_n": score.n}
    return row


def _two_sample(finished: FinishedCell, base: FinishedCell, floor: FinishedCell) -> Row:
    """Test whether tokens and log-probabilities follow that of autoregressive decoding, for a cell without an audit.

    The cell is compared with the autoregressive set of other seeds, because it shares its seeds with the baseline:
    outputs of shared seeds resemble each other more than two sets of samples do. The baseline against that set is the
    floor: the effect of a different seed alone.
    """
    row: Row = {}
    unigrams = paired_tests.unigram_test(floor.samples["tokens"], finished.samples["tokens"])
    row |= {"tv": unigrams.statistic, "tv_p": unigrams.p} if unigrams else {}
    if floor.cell.name not in base.unigrams:
        base.unigrams[floor.cell.name] = paired_tests.unigram_test(floor.samples["tokens"], base.samples["tokens"])
    seeds = base.unigrams[floor.cell.name]
    row |= {"tv_floor": seeds.statistic, "tv_floor_p": seeds.p} if seeds else {}
    logprob, floor_logprob = (cell.totals["logprob"] / cell.totals["output"] for cell in (finished, floor))
    ks = paired_tests.ks_test(floor_logprob, logprob)
    return row | ({"ks": ks.statistic, "ks_p": ks.p} if ks else {})
