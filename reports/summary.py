"""One row a cell: every number of a run that a table, a figure or a comparison shows.

A metric is read from ``ledger.METRICS`` and never defined again here. An estimate ``x`` has columns x, x_low,
x_high and x_n (prompts behind it); x_low is missing where four prompts were not reached. Speed is compared
with the autoregressive baseline of the same run, paired by prompt and seed, per output token: sampled
outputs differ in length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.record import stats
from harness.record.ledger import METRICS, totals, value

if TYPE_CHECKING:
    from harness.record.store import Cell, Store

INTERVALS = ("scr", "tau", "acceptance", "acceptance_per_node", "ms_per_token", "throughput", "logprob")
"""Metrics shown with an interval, and those without:"""
PLAIN = ("expected_per_node", "nfe_per_output", "reused", "draft_nfe", "tokens_per_second")
FAILED_SHARE = 0.1
DEAD, DEAD_TESTED = 0.01, 200
MISMATCH = 0.15

Row = dict[str, Any]


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell, its counted samples by (prompt, repetition), and their totals."""

    cell: Cell
    samples: pd.DataFrame
    totals: pd.DataFrame

    @staticmethod
    def of(cell: Cell) -> FinishedCell:
        """Totals are ``ledger.totals``, less the log-probability where the output's was not measured."""
        samples = cell.samples
        good = samples[(samples["status"] == "ok") & ~samples["warmup"]].set_index(["prompt", "repetition"])
        frame = totals(samples, cell.steps)
        measured = good["logprobs"].map(len).eq(good["tokens"].map(len))
        return FinishedCell(cell, good, frame.assign(logprob=frame["logprob"].astype(float).where(measured)))

    @property
    def temperature(self) -> float:
        """0: greedy."""
        return float((self.cell.meta.get("sampling") or {}).get("temperature", 0.0))

    @property
    def scores(self) -> pd.DataFrame:
        """The task's scores of each sample, a column a name."""
        rows = [json.loads(one) if one else {} for one in self.samples["scores"]]
        return pd.DataFrame(rows, index=self.samples.index).astype(float)

    @property
    def role(self) -> str:
        """method, baseline, or floor (the second autoregressive set)."""
        return str(self.cell.meta.get("role", "method"))


def summarise(store: Store) -> pd.DataFrame:
    """One row a cell of the manifest, in its order; skipped and unfinished ones too, with the reason."""
    sealed = set(store.cells())
    read = cache(lambda name: FinishedCell.of(store.cell(name)))
    rows = []
    for name, planned in store.manifest["cells"].items():
        if name in sealed:
            others = (read(name).cell.meta.get(role) for role in ("baseline", "floor"))
            base, floor = (read(other) if other in sealed else None for other in others)
            rows.append(measure(read(name), base, floor))
        else:
            row = _identity(name, {"status": "unfinished", **planned})
            rows.append({**row, "n_skipped": planned.get("expected")})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(_identity("", {})))


def by_category(store: Store) -> pd.DataFrame:
    """One row a cell and category of its prompts; empty where the tasks name no category."""
    sealed = set(store.cells())
    read = cache(lambda name: FinishedCell.of(store.cell(name)))
    rows = []
    for name in store.cells():
        held = read(name)
        base = held.cell.meta.get("baseline")
        for category in sorted(set(held.samples["category"]) - {""}):
            frame = held.totals[held.samples["category"] == category]
            row = {**_identity(name, held.cell.meta), "category": category, "n_ok": len(frame)}
            for metric in ("scr", "tau", "acceptance"):
                put(row, metric, metric_interval(metric, frame))
            rows.append(row | _speed(frame, read(base) if base in sealed else None))
    return pd.DataFrame(rows)


def metric_interval(name: str, frame: pd.DataFrame) -> stats.Interval | None:
    """A metric of the ledger over rows of totals, with its interval."""
    metric = METRICS[name]
    return stats.ratio(frame, metric.numerator, metric.denominator, metric.minus)


def put(row: Row, name: str, interval: stats.Interval | None) -> None:
    """Write an interval into the four columns of ``name``; nothing where there is none."""
    if interval:
        row |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
        row[f"{name}_n"] = interval.n


def measure(held: FinishedCell, base: FinishedCell | None, floor: FinishedCell | None) -> Row:
    """The row of a finished cell, against its baseline and the second autoregressive set of its run."""
    cell, frame = held.cell, held.totals
    row = _identity(cell.name, cell.meta) | _numbers_of_samples(cell) | {"nfe": float(frame["nfe"].sum())}
    for name in INTERVALS:
        put(row, name, metric_interval(name, frame))
    row |= {name: value(METRICS[name], frame) for name in PLAIN}
    row |= _latency(cell.steps, frame) | _speed(frame, base) | _quality(held, base)
    if held.temperature > 0 and base is not None and held.role == "method":
        row |= _two_sample(held, base, floor)
    row["unmeasured"] = _unmeasured(cell.meta)
    row |= {
        "flags": "; ".join(_flags(row, cell.samples, frame)),
        "valid": row["n_failed"] <= FAILED_SHARE * row["n_run"],
    }
    return row


def _identity(name: str, meta: Mapping[str, Any]) -> Row:
    words = ("method", "role", "claim", "source", "backbone", "dtype", "task", "max_new_tokens", "batch")
    verdict = meta.get("verdict") or {}
    return {
        "cell": name,
        "label": meta.get("label") or meta.get("method") or name,
        **{word: meta.get(word) for word in words},
        "params": json.dumps(meta.get("params") or {}, sort_keys=True),
        "temperature": float((meta.get("sampling") or {}).get("temperature", 0.0)),
        "top_k": int((meta.get("sampling") or {}).get("top_k", 0)),
        "status": meta.get("status", "done"),
        "reason": meta.get("reason"),
        "verdict": verdict.get("word", "unverified"),
        "total_variation": verdict.get("total_variation"),
        "greedy": verdict.get("greedy"),
        "note": verdict.get("note"),
        "flags": "",
    }


def _numbers_of_samples(cell: Cell) -> Row:
    status = cell.samples.loc[~cell.samples["warmup"], "status"]
    ok, failed = int((status == "ok").sum()), int((status != "ok").sum())
    expected = int(cell.meta.get("expected", ok + failed))
    return {"n_ok": ok, "n_failed": failed, "n_run": ok + failed, "n_skipped": expected - ok - failed}


def _latency(steps: pd.DataFrame, frame: pd.DataFrame) -> Row:
    """Of counted steps, in ms: the wall's p50 and p95, and the median of each of its parts."""
    index = pd.MultiIndex.from_frame(steps[["prompt", "repetition"]])
    kept = steps[index.isin(frame.index) & ~steps["warmup"].to_numpy(dtype=bool)]
    parts = {f"{part}_ms": kept[f"{part}_ns"].median() / 1e6 for part in ("draft", "target", "verify", "host")}
    wall = kept["wall_ns"].quantile([0.5, 0.95]) / 1e6
    prefill = frame["prefill_ms"].median()
    return {"step_p50_ms": wall.loc[0.5], "step_p95_ms": wall.loc[0.95], **parts, "prefill_ms": prefill}


def _speed(frame: pd.DataFrame, base: FinishedCell | None) -> Row:
    """Measured speed-up, and the one that tokens a step and the mean steps of both predict."""
    if base is None or frame.empty:
        return {}
    row: Row = {}
    theirs = base.totals[base.totals.index.isin(frame.index)]
    put(row, "speedup", stats.median_ratio(token_ms(theirs), token_ms(frame)))
    tokens, after = (value(METRICS[name], frame) for name in ("tau", "step_ms"))
    before = value(METRICS["step_ms"], theirs)
    if tokens and before and after:
        row["predicted"] = tokens * before / after
    return row


def token_ms(frame: pd.DataFrame) -> pd.Series[float]:
    """Milliseconds an output token, by sample."""
    metric = METRICS["ms_per_token"]
    return frame[metric.numerator] / frame[metric.denominator]


def _quality(held: FinishedCell, base: FinishedCell | None) -> Row:
    row: Row = {}
    if not held.temperature:
        put(row, "agreement", stats.mean(held.totals["agreement"]))
    each = held.samples["logprobs"].explode().dropna().astype(float)
    row["logprob_std"] = float(each.std()) if len(each) > 1 else None
    if base is not None:
        put(row, "logprob_diff", stats.difference(base.totals, held.totals, "logprob", "output"))
    for name, values in held.scores.items():
        put(row, f"score.{name}", stats.score(values))
    return row | _sets(held.cell.meta)


def _sets(meta: Mapping[str, Any]) -> Row:
    """Figures of all outputs together, as the task measured them when the cell was sealed."""
    row: Row = {}
    for name, found in (meta.get("set_scores") or {}).items():
        if found["value"] is not None:
            ends = {f"set.{name}_low": found["low"], f"set.{name}_high": found["high"]}
            row |= {f"set.{name}": found["value"], **ends, f"set.{name}_n": found["n"]}
    return row


def _unmeasured(meta: Mapping[str, Any]) -> list[str]:
    found = (meta.get("set_scores") or {}).items()
    return [f"{name} not measured: {score['reason']}" for name, score in found if score["value"] is None]


def _two_sample(held: FinishedCell, base: FinishedCell, floor: FinishedCell | None) -> Row:
    """Is it the baseline's law? Tokens and log-probabilities, beside autoregressive against itself."""
    row: Row = {}
    found = stats.unigram_test(base.samples["tokens"], held.samples["tokens"])
    row |= {"tv": found.statistic, "tv_p": found.p} if found else {}
    again = stats.unigram_test(base.samples["tokens"], floor.samples["tokens"]) if floor is not None else None
    row |= {"tv_floor": again.statistic, "tv_floor_p": again.p} if again else {}
    ours, theirs = (one.totals["logprob"] / one.totals["output"] for one in (held, base))
    ks = stats.ks_test(theirs, ours)
    return row | ({"ks": ks.statistic, "ks_p": ks.p} if ks else {})


def _commonest(samples: pd.DataFrame) -> str:
    """The error that most failed samples have, behind a colon; nothing where none says why."""
    errors = samples.loc[~samples["warmup"] & (samples["status"] != "ok"), "error"].dropna()
    counts = errors.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    if counts.empty:
        return ""
    share = f"{counts.iloc[0]} of them: " if len(counts) > 1 else ""
    return f": {share}{counts.index[0]}".replace("; ", ", ")  # flags are parted by semicolons


def _flags(row: Row, samples: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    tested, acceptance = float(frame["tested"].sum()), row.get("acceptance")
    flags = [] if len(frame) else ["no sample"]
    flags += row.pop("unmeasured", [])
    if row["n_failed"]:
        word = "invalid: " if row["n_failed"] > FAILED_SHARE * row["n_run"] else ""
        flags.append(f"{word}{row['n_failed']} of {row['n_run']} failed{_commonest(samples)}")
    if acceptance is not None and acceptance < DEAD and tested >= DEAD_TESTED:
        flags.append(f"dead drafter: acceptance below {DEAD:.0%}")
    if len(frame) and "speedup" not in row:
        flags.append("no baseline in this run")
    low, high, predicted = (row.get(key) for key in ("speedup_low", "speedup_high", "predicted"))
    if low is None or high is None or predicted is None:
        return flags
    if not low * (1 - MISMATCH) <= predicted <= high * (1 + MISMATCH):
        flags.append(f"mismatch: predicted {predicted:.2f}x")
    return flags
