"""The flags of a cell: what a reader of its row should know before trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pandas as pd

from stridebench.harness.record import stats
from stridebench.reports.finished_cell import (
    WAITING_STEPS,
    FinishedCell,
    Row,
    disturbed_share,
    stopped_steps,
    token_ms,
)

INVALID, IMPOSSIBLE = "invalid: ", "disturbed timing: a speed-up of "
"""Flags of cells whose speed-up says nothing begin so."""
FAILED_SHARE = 0.1
"""A cell is invalid if a larger share of its samples failed."""
DEAD, DEAD_TESTED = 0.01, 200
"""A drafter is called dead below this acceptance rate, once so many tokens were tested."""
MISMATCH = 0.15
"""Relative distance from the interval of the measured speed-up at which the predicted one is flagged."""
DISTURBED = 1.25
"""Autoregressive decoding this many times faster or slower than itself is flagged: other work disturbed the timing."""
UNEQUAL = 1.05
"""Autoregressive decoding against itself is flagged if the interval lies this far from 1."""
SIGNIFICANT = 0.001
"""A two-sample test is flagged at this p-value: with 20 sampled cells, one run in 25 flags one by chance."""


def cluster_flags(frame: pd.DataFrame) -> list[str]:
    """Return "n = 24 in 8 clusters", or nothing if no prompts share a cluster."""
    prompts = frame.index.get_level_values("prompt").nunique()
    number = stats.clusters(frame.index, frame["cluster"]).nunique()
    return [f"n = {prompts} in {number} clusters"] if 1 < prompts != number else []


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


def measured_flags(row: Row, unmeasured: list[str], samples: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    """Return the flags of samples, drafter, audit and two-sample tests; ``unmeasured`` are those of scores."""
    tested, acceptance = float(frame["tested"].sum()), _number(row, "acceptance")
    flags = [] if len(frame) else ["no sample"]
    flags += unmeasured
    if failed := _number(row, "n_failed"):
        run = _number(row, "n_run") or 0
        word = INVALID if failed > FAILED_SHARE * run else ""
        flags.append(f"{word}{failed} of {run} failed{_most_frequent_error(samples)}")
    if acceptance is not None and acceptance < DEAD and tested >= DEAD_TESTED:
        flags.append(f"dead drafter: acceptance below {DEAD:.0%}")
    flags += _drafter_flags(row) + _unread_flags(samples) + blind_flags(row)
    if len(frame) and "speedup" not in row:
        flags.append("no baseline in this run, or no output of it to compare with")
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


def disturbed_flags(row: Row, base: FinishedCell | None, floor: FinishedCell | None) -> list[str]:
    """Return what shows that seconds cannot be trusted: a floor far from 1, or a speed-up that no step can have."""
    flags, cause = [], row.pop("disturbed_by")
    if base is not None and floor is not None:
        if floor.cell.name not in base.gains:
            base.gains[floor.cell.name] = stats.median_ratio(token_ms(base.totals), token_ms(floor.totals))
        against_itself = base.gains[floor.cell.name]
        if against_itself is not None and unlike_itself(against_itself):
            flags.append(f"disturbed timing: autoregressive against itself is {against_itself.estimate:.2f}x")
    for of, words in (("", row.pop("stopped")), ("the baseline's ", "" if base is None else stopped_steps(base.steps))):
        if words and not (of and base is not None and base.cell.name == row["cell"]):
            flags.append(f"disturbed timing: the process was stopped in {of}{words}, which its times leave out")
    steps = _number(row, "disturbed_steps") or 0.0
    if steps > WAITING_STEPS:
        flags.append(f"disturbed timing: {cause} in {steps:.0%} of the steps")
    of_baseline = 0.0 if base is None or base.cell.name == row["cell"] else disturbed_share(base.steps)
    if of_baseline > WAITING_STEPS and steps <= WAITING_STEPS:
        flags.append(f"disturbed timing: {cause} in {of_baseline:.0%} of the baseline's steps")
    speedup, low, tau, shorter = (_number(row, key) for key in ("speedup", "speedup_low", "tau", "shorter_passes"))
    del row["shorter_passes"]
    fastest = low if low is not None else speedup
    if fastest is not None and tau and fastest > DISTURBED * tau * (shorter or 1.0):
        flags.append(f"{IMPOSSIBLE}{speedup:.2f}x at {tau:.2f} tokens a step")
    return flags


def unlike_itself(ratio: stats.Interval) -> bool:
    """Whether the speed-up of a decoding over itself shows that intervals of this run are too short, or worse."""
    excluded = ratio.low is not None and ratio.high is not None and (ratio.low > UNEQUAL or ratio.high < 1 / UNEQUAL)
    return excluded or not 1 / DISTURBED <= ratio.estimate <= DISTURBED


def mismatch_flags(row: Row) -> list[str]:
    """Return a flag if step times and tokens a step predict another speed-up; of undisturbed seconds only."""
    low, high, predicted = (_number(row, key) for key in ("speedup_low", "speedup_high", "predicted"))
    if low is None or high is None or predicted is None:
        return []
    fits = low * (1 - MISMATCH) <= predicted <= high * (1 + MISMATCH)
    return [] if fits else [f"mismatch: predicted {predicted:.2f}x"]
