"""The summary of a run: one row a cell, with every number that a table, a figure or a comparison shows.

Metrics are defined in ``metrics.METRICS`` alone. An estimate ``x`` has the columns x, x_low, x_high and x_n, the number
of prompts behind it. x_low is missing if there are fewer than six prompts (four for agreement). Speed is compared
with the autoregressive baseline of the same run, paired by prompt and seed. It is compared per output token, because
sampled outputs differ in length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stridebench.harness.errors import printable_line
from stridebench.harness.record import stats
from stridebench.harness.record.columns import SCORER_FAILED
from stridebench.harness.record.entries import SAMPLING, CellMeta
from stridebench.harness.record.metrics import METRICS, counted_samples, owners, sums_of, value

if TYPE_CHECKING:
    from stridebench.harness.record.store import SealedCell, Store

INTERVALS = ("scr", "tau", "acceptance", "acceptance_per_node", "ms_per_token", "throughput", "logprob")
"""Metrics shown with an interval."""
CONSUMED = ("peak_mb", "cpu_joules_per_token", "gpu_joules_per_token")
PLAIN = (
    *("expected_per_node", "nfe_per_output", "reused", "draft_nfe", "tokens_per_second", "start_nfe", "start_ms"),
    *CONSUMED,
)
"""Metrics shown without an interval."""
FAILED_SHARE = 0.1
"""A cell is invalid if a larger share of its samples failed."""
DEAD, DEAD_TESTED = 0.01, 200
"""A drafter is called dead below this acceptance rate, once so many tokens were tested."""
MISMATCH = 0.15
"""Relative distance from the interval of the measured speed-up at which the predicted one is flagged."""
DISTURBED = 1.25
"""Autoregressive decoding this many times faster or slower than itself is flagged: other work disturbed the timing."""
WAITED, WAITING_STEPS = 0.05, 0.1
"""A step is disturbed if threads waited for a core for this share of its time; a cell, if so many steps are."""
SLOW_CLOCK = 0.9
"""A step is disturbed if the GPU's clock is below this share of the highest clock of the cell's steps."""
UNEQUAL = 1.05
"""Autoregressive decoding against itself is flagged if the interval lies this far from 1."""
SIGNIFICANT = 0.001
"""A two-sample test is flagged at this p-value: with 20 sampled cells, one run in 25 flags one by chance."""

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

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps that are not of warm-ups."""
        return counted(self.cell.steps)

    @cached_property
    def unigrams(self) -> dict[str, stats.TwoSample | None]:
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


def counted(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that are not of warm-ups."""
    warm = steps["warmup"].to_numpy(dtype=bool)
    return steps[~warm] if warm.any() else steps


def reader(store: Store) -> Callable[[str], FinishedCell]:
    """Return the finished cell of a name; each is read and added up once."""
    return cache(lambda name: FinishedCell.of(store.cell(name)))


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
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(_identity("", CellMeta())))


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
    rows = []
    for name in store.cells():
        finished = read(name)
        base = finished.cell.meta.baseline
        for category in sorted(set(finished.samples["category"]) - {""}):
            frame = finished.totals[finished.samples["category"] == category]
            row = {**_identity(name, finished.cell.meta), "category": category, "n_ok": len(frame)}
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
    row |= {"disturbed_steps": disturbed_share(finished.steps), "disturbed_by": _cause(cell.steps)}
    row["stopped"] = _stopped(finished.steps)
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
                *_flags(row, unmeasured, cell.samples, frame),
                *_clustered(frame),
                *([f"{ADAPTED} {_plain(cell.meta.adapter_on)} ones"] if cell.meta.adapter_on else []),
                *cell.meta.backbone_notes,
                *(_disturbed_flags(row, base, floor) or _mismatch(row)),
            ]
        ),
        "valid": failed <= FAILED_SHARE * (ok + failed),
    }
    return row if cell.meta.timed else _without_seconds(row)


def _clustered(frame: pd.DataFrame) -> list[str]:
    """Return "n = 24 in 8 clusters", or nothing if no prompts share a cluster."""
    prompts = frame.index.get_level_values("prompt").nunique()
    number = stats.clusters(frame.index, frame["cluster"]).nunique()
    return [f"n = {prompts} in {number} clusters"] if 1 < prompts != number else []


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
    if base is None or frame.empty:
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
    return float(frame["wall_ms"].sum() / frame["steps"].sum()) if len(frame) else None


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


def _cause(steps: pd.DataFrame) -> str:
    """Return what disturbed steps may have met."""
    on_gpu = len(steps) and steps["gpu_mhz"].max() > 0
    return "threads waited, or the GPU was shared or slow," if on_gpu else "threads waited for a core"


def _stopped(steps: pd.DataFrame) -> str:
    """Return in how many of some steps the process was stopped, and for how long together; "" if it never was."""
    stops = steps["stopped_ns"].to_numpy()
    if not stops.sum():
        return ""
    return f"{(stops > 0).sum()} of {len(stops)} steps, for {stops.sum() / 1e9:.1f} s together"


def token_ms(frame: pd.DataFrame) -> pd.Series[float]:
    """Return milliseconds per output token, by sample."""
    metric = METRICS["ms_per_token"]
    return frame[metric.numerator] / frame[metric.denominator]


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
    unigrams = stats.unigram_test(floor.samples["tokens"], finished.samples["tokens"])
    row |= {"tv": unigrams.statistic, "tv_p": unigrams.p} if unigrams else {}
    if floor.cell.name not in base.unigrams:
        base.unigrams[floor.cell.name] = stats.unigram_test(floor.samples["tokens"], base.samples["tokens"])
    seeds = base.unigrams[floor.cell.name]
    row |= {"tv_floor": seeds.statistic, "tv_floor_p": seeds.p} if seeds else {}
    logprob, floor_logprob = (cell.totals["logprob"] / cell.totals["output"] for cell in (finished, floor))
    ks = stats.ks_test(floor_logprob, logprob)
    return row | ({"ks": ks.statistic, "ks_p": ks.p} if ks else {})


def _most_frequent_error(samples: pd.DataFrame) -> str:
    """Return the most frequent error after a colon; "" if no failed sample has a reason."""
    errors = samples.loc[~samples["warmup"] & (samples["status"] != "ok"), "error"].dropna()
    counts = errors.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    if counts.empty:
        return ""
    share = f"{counts.iloc[0]} of them: " if len(counts) > 1 else ""
    return f": {share}{counts.index[0]}".replace("; ", ", ")  # semicolons separate flags


def _number(row: Row, key: str) -> float | None:
    """Return a figure of a row, or None if the row lacks it."""
    return cast("float | None", row.get(key))


def _flags(row: Row, unmeasured: list[str], samples: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    tested, acceptance = float(frame["tested"].sum()), _number(row, "acceptance")
    flags = [] if len(frame) else ["no sample"]
    flags += unmeasured
    if failed := _number(row, "n_failed"):
        run = _number(row, "n_run") or 0
        word = "invalid: " if failed > FAILED_SHARE * run else ""
        flags.append(f"{word}{failed} of {run} failed{_most_frequent_error(samples)}")
    if acceptance is not None and acceptance < DEAD and tested >= DEAD_TESTED:
        flags.append(f"dead drafter: acceptance below {DEAD:.0%}")
    flags += _drafter_flags(row) + _unread_flags(samples) + blind_flags(row)
    if len(frame) and "speedup" not in row:
        flags.append("no baseline in this run")
    if str(row["note"]).startswith("audit: "):
        flags.append(str(row["note"]).replace("; ", ", "))
    for key, what in (("tv_p", "tokens"), ("ks_p", "log-probabilities")):
        p = _number(row, key)
        if p is not None and p <= SIGNIFICANT:
            flags.append(f"{what} are distributed unlike autoregressive ones: two-sample test, p = {p:.2g}")
    return flags


def _unread_flags(samples: pd.DataFrame) -> list[str]:
    """Return the flag of prompts that the model read in part, with the first of them."""
    counted = ~samples["warmup"].to_numpy(dtype=bool)
    cut = counted & (samples["unread"] != "").to_numpy(dtype=bool)
    if not cut.any():
        return []
    first = samples.iloc[int(cut.argmax())]
    return [f"{cut.sum()} of {counted.sum()} prompts were read in part: {first['unread']} ({first['prompt']})"]


def on_toys_alone(row: Mapping[Any, Any] | pd.Series[Any]) -> bool:
    """Return whether a method is exact on small models, and its tokens are too few to show a bias."""
    if row.get("role", "method") != "method":  # plain decoding is the distribution itself
        return False
    tokens, tv = row.get("audit_tokens"), row.get("audit_visible_tv")
    return row["verdict"] == "exact" and tokens is not None and tokens == tokens and (tv is None or tv != tv)


def blind_flags(row: Row) -> list[str]:
    """Return what the word exact rests on, if the tokens of the cell could not have shown a bias."""
    if not on_toys_alone(row):
        return []
    needed = f"{row['audit_needed']:,}" if row["audit_needed"] else "many more"
    return [f"exact on toys: nothing seen in {row['audit_tokens']:,} tokens, {needed} are needed"]


def _drafter_flags(row: Row) -> list[str]:
    """Return the flag of a drafter whose distributions differ by more than rounding from those it gives anew."""
    distance, limit = _number(row, "drafter_tv"), _number(row, "drafter_tv_limit")
    if distance is None or limit is None or distance <= limit:
        return []
    return [
        f"the drafter drafts unlike one that reads the same text anew: total variation {distance:.2g} in "
        f"{row['drafter_places']} places (rounding: {limit:.2g}), acceptance {row['drafter_acceptance']:.3f}, anew "
        f"{row['drafter_acceptance_anew']:.3f}"
    ]


def _disturbed_flags(row: Row, base: FinishedCell | None, floor: FinishedCell | None) -> list[str]:
    """Return what shows that seconds cannot be trusted: a floor far from 1, or a speed-up that no step can have."""
    flags, cause = [], row.pop("disturbed_by")
    if base is not None and floor is not None:
        if floor.cell.name not in base.gains:
            base.gains[floor.cell.name] = stats.median_ratio(token_ms(base.totals), token_ms(floor.totals))
        against_itself = base.gains[floor.cell.name]
        if against_itself is not None and unlike_itself(against_itself):
            flags.append(f"disturbed timing: autoregressive against itself is {against_itself.estimate:.2f}x")
    for of, words in (("", row.pop("stopped")), ("the baseline's ", "" if base is None else _stopped(base.steps))):
        if words and not (of and base is not None and base.cell.name == row["cell"]):
            flags.append(f"disturbed timing: the process was stopped in {of}{words}, which its times leave out")
    steps = _number(row, "disturbed_steps") or 0.0
    if steps > WAITING_STEPS:
        flags.append(f"disturbed timing: {cause} in {steps:.0%} of the steps")
    of_baseline = 0.0 if base is None or base.cell.name == row["cell"] else disturbed_share(base.steps)
    if of_baseline > WAITING_STEPS and steps <= WAITING_STEPS:
        flags.append(f"disturbed timing: {cause} in {of_baseline:.0%} of the baseline's steps")
    speedup, low, tau = (_number(row, key) for key in ("speedup", "speedup_low", "tau"))
    fastest = low if low is not None else speedup
    if fastest is not None and tau and fastest > DISTURBED * tau:
        flags.append(f"disturbed timing: a speed-up of {speedup:.2f}x at {tau:.2f} tokens a step")
    return flags


def unlike_itself(ratio: stats.Interval) -> bool:
    """Whether the speed-up of a decoding over itself shows that intervals of this run are too short, or worse."""
    excluded = ratio.low is not None and ratio.high is not None and (ratio.low > UNEQUAL or ratio.high < 1 / UNEQUAL)
    return excluded or not 1 / DISTURBED <= ratio.estimate <= DISTURBED


def _mismatch(row: Row) -> list[str]:
    """Return a flag if step times and tokens a step predict another speed-up; of undisturbed seconds only."""
    low, high, predicted = (_number(row, key) for key in ("speedup_low", "speedup_high", "predicted"))
    if low is None or high is None or predicted is None:
        return []
    fits = low * (1 - MISMATCH) <= predicted <= high * (1 + MISMATCH)
    return [] if fits else [f"mismatch: predicted {predicted:.2f}x"]
