"""Methods of a run, ranked by speed-up in the groups that share a baseline: what they gain and lose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stridebench.harness.record.entries import SAMPLING, sampling_words
from stridebench.reports.quality import lower_is_better, main_score
from stridebench.reports.tables import GROUP


@dataclass(frozen=True)
class RankedGroup:
    """Cells that share a baseline: methods from fast to slow, the baseline, and a second set of it, or None."""

    title: str
    short: str
    methods: pd.DataFrame
    baseline: pd.Series[Any]
    floor: pd.Series[Any] | None
    score: str | None

    def rows(self) -> Iterator[pd.Series[Any]]:
        """Yield its methods, from fast to slow."""
        yield from (row for _, row in self.methods.iterrows())


def groups(frame: pd.DataFrame) -> Iterator[RankedGroup]:
    """Yield the groups of a summary that hold a method with a speed-up."""
    done = frame[frame["status"] == "done"]
    if "speedup" not in done:
        return
    for _, rows in done.groupby(list(GROUP), sort=False, dropna=False):
        first = rows.iloc[0]
        methods = rows[(rows["role"] == "method") & rows["speedup"].notna()]
        baseline, floor = (rows[rows["role"] == role] for role in ("baseline", "floor"))
        if methods.empty or baseline.empty:
            continue
        n = methods["speedup_n"].max()
        sampling = sampling_words(*(first[word] for word in SAMPLING))
        parts = [f"{first['backbone']} {first['dtype']}", str(first["task"]), sampling]
        parts += [f"batch {first['batch']:g}" if first["batch"] > 1 else "", f"n = {n:.0f}" if n == n else ""]
        yield RankedGroup(
            " · ".join(filter(None, parts)),
            ", ".join([str(first["backbone"]), str(first["task"]), sampling, *parts[3:4]]).rstrip(", "),
            methods.sort_values("speedup", ascending=False, kind="stable"),
            baseline.iloc[0],
            floor.iloc[0] if len(floor) else None,
            main_score(methods),
        )


def value_of(row: pd.Series[Any], key: str) -> float:
    """Return a figure of a cell; NaN, which no comparison holds for, if it has none."""
    return float(row[key]) if key in row and pd.notna(row[key]) else math.nan


def gains(row: pd.Series[Any]) -> bool | None:
    """Return whether the interval of a speed-up lies above 1, or None if it holds 1 or there is none."""
    above, below = value_of(row, "speedup_low") > 1, value_of(row, "speedup_high") < 1
    return above if above or below else None


def loses(row: pd.Series[Any], group: RankedGroup) -> bool:
    """Return whether a cell that is not exact is shown to be worse: in log-probability, or in the main score.

    A score is worse if its interval lies on the worse side of the baseline's estimate.
    """
    if row["verdict"] == "exact":
        return False
    if value_of(row, "logprob_diff_high") < 0:
        return True
    if group.score is None:
        return False
    baseline = value_of(group.baseline, group.score)
    if lower_is_better(group.score):
        return value_of(row, f"{group.score}_low") > baseline
    return value_of(row, f"{group.score}_high") < baseline


def is_measured(row: pd.Series[Any], key: str) -> bool:
    """Return whether a cell has a figure."""
    return not math.isnan(value_of(row, key))
