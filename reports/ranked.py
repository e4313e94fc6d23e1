"""Methods of a run, ranked by speed-up among those of one baseline: what they gain and lose, in rows and words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stridebench.harness.record.entries import SAMPLING, sampling_words
from stridebench.harness.record.stats import FEWEST
from stridebench.reports.flags import IMPOSSIBLE, INVALID
from stridebench.reports.quality import amount, in_words, lower_is_better, main_score
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


def of_baseline(group: RankedGroup) -> list[str]:
    """Return the main score of autoregressive decoding in words, if it has one."""
    known = group.score is not None and is_measured(group.baseline, group.score)
    return [f"AR {amount(group.baseline, str(group.score))}"] if known else []


NAMED = 4
"""Cells of each kind that a sentence names."""


def conclusions(frame: pd.DataFrame) -> list[str]:
    """Return sentences about the methods of a summary, or none if no method has a speed-up.

    They say which exact methods are faster, which are broken, what approximate ones lose, and what was not shown.
    """
    settings = list(groups(frame))
    if not settings:
        return []
    return [_pays(settings), *_broken(settings), *_costs(settings), _not_shown(frame, settings)]


def _doubted(row: pd.Series[Any]) -> bool:
    """Return whether flags take a speed-up back: too many samples failed, or no step can be as fast."""
    return any(flag.startswith((INVALID, IMPOSSIBLE)) for flag in str(row.get("flags")).split("; "))


def _pays(settings: list[RankedGroup]) -> str:
    cells = [(group, row) for group in settings for row in group.rows() if row["verdict"] == "exact"]
    faster = [(group, row) for group, row in cells if gains(row) and not _doubted(row)]
    best = list({id(group): (group, row) for group, row in reversed(faster)}.values())[::-1]
    if not cells:
        return "No method is proved exact here."
    if not faster:
        return f"Exact methods: none of {len(cells)} is shown to be faster here."
    names = _listed([f"{row['label']} {_factor(row)} ({group.short})" for group, row in best])
    return f"Exact and faster, {len(faster)} of {len(cells)} cells; the fastest of each setting: {names}."


def _broken(settings: list[RankedGroup]) -> list[str]:
    names = [str(row["label"]) for group in settings for row in group.rows() if row["verdict"] == "broken"]
    return [f"Broken, so that their speed-ups say nothing: {_listed(list(dict.fromkeys(names)))}."] if names else []


def _costs(settings: list[RankedGroup]) -> list[str]:
    cells = [(group, row) for group in settings for row in group.rows() if row["verdict"] == "approximate"]
    if not cells:
        return []
    losing = [(group, row) for group, row in cells if loses(row, group)]
    costs = [f"{row['label']} {_factor(row)} ({_cost(row, group)})" for group, row in losing]
    others = [f"{row['label']} {_factor(row)}" for group, row in cells if not loses(row, group)]
    parts = [f"shown to lose quality: {_listed(costs)}"] if costs else []
    parts += [f"no loss shown: {_listed(others)}"] if others else []
    return [f"Approximate: {'; '.join(parts)}."]


def _not_shown(frame: pd.DataFrame, settings: list[RankedGroup]) -> str:
    rows = [row for group in settings for row in group.rows()]
    parts = []
    if unclear := [str(row["label"]) for row in rows if gains(row) is None or (gains(row) and _doubted(row))]:
        parts.append(
            f"whether {_listed(list(dict.fromkeys(unclear)))} {'is' if len(set(unclear)) == 1 else 'are'} faster"
        )
    if unverified := sum(str(row["verdict"]).startswith("unverified") for row in rows):
        parts.append(f"whether {unverified} unverified cell{' is' if unverified == 1 else 's are'} exact")
    sampled = [row for row in rows if row["verdict"] == "exact" and row["temperature"]]
    seen = [row["audit_visible_tv"] for row in sampled if is_measured(row, "audit_visible_tv")]
    if blind := len(sampled) - len(seen):
        parts.append(
            f"a bias of {blind} exact cell{'' if blind == 1 else 's'} at T > 0, which have too few tokens for an audit"
        )
    if seen:
        parts.append(
            f"a bias below {max(seen):.2g} of total variation a token, or of a kind that the audit has no bet on"
        )
    few = [group.short for group in settings if group.methods["speedup_n"].max() < FEWEST]
    if few:
        parts.append(f"intervals for {_listed(few)}, of fewer than {FEWEST} prompts")
    failed = int(frame["n_failed"].fillna(0).sum())
    skipped = int((frame["status"] != "done").sum())
    parts += [f"{failed} samples that failed or whose output is malformed"] if failed else []
    parts += [f"{skipped} cells that were skipped or not finished"] if skipped else []
    return f"Not shown: {'; '.join(parts)}." if parts else "Every speed-up has an interval that leaves out 1."


def _factor(row: pd.Series[Any]) -> str:
    between = f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]" if is_measured(row, "speedup_low") else ""
    return f"{row['speedup']:.2f}×{between}"


def _cost(row: pd.Series[Any], group: RankedGroup) -> str:
    parts = []
    if value_of(row, "logprob_diff_high") < 0:
        parts.append(f"{-row['logprob_diff']:.2f} nat a token")
    if group.score is not None and is_measured(row, group.score):
        parts.append(", ".join([in_words(row, group.score), *of_baseline(group)]))
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
