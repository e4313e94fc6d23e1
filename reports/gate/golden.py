"""A gate against one number: the mean acceptance length that another tool or an earlier run measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from stridebench.harness.errors import UsageError, did_you_mean
from stridebench.harness.record import stats
from stridebench.harness.record.store import Store
from stridebench.reports.gate.decision import EXIT
from stridebench.reports.interchange.readers import read
from stridebench.reports.interchange.results import ToolResult, lengths

MARGIN = 0.05
"""Tolerated drop of the length less 1, if none is named."""


@dataclass(frozen=True)
class Held:
    """One cell against a reference length.

    Args:
        reference: mean tokens of a pass with a draft.
        length: of the cell, with its interval over prompts, or None if these are too few.
        verdict: pass: the interval lies above the reference less the margin; fail: below; else inconclusive.
    """

    label: str
    reference: float
    length: float
    low: float | None
    high: float | None
    verdict: str


def reference(path: Path, setting: str, drafts: int | None) -> float:
    """The length that a file of another tool tells (`stridebench.reports.interchange.readers`).

    Args:
        setting: of a golden file, such as thinking_on; "": its only one.
        drafts: the draft length, for a golden file.
    """
    result = read(path)
    if not result.golden:
        if result.length is None:
            raise UsageError(f"{path} ({result.tool}) tells no steps with a draft, so it holds no reference")
        return result.length
    return _golden(path, result, setting, drafts)


def _golden(path: Path, result: ToolResult, setting: str, drafts: int | None) -> float:
    settings = list(dict.fromkeys(name for name, _ in result.golden))
    name = setting or (settings[0] if len(settings) == 1 else "")
    if name not in settings:
        hint = did_you_mean(name, settings) if name else ""
        raise UsageError(f"{path}: name one of its settings with --setting: {', '.join(settings)}{hint}")
    curve = {k: length for (mode, k), length in result.golden.items() if mode == name}
    if drafts is None and len(curve) == 1:
        return next(iter(curve.values()))
    if drafts not in curve:
        raise UsageError(f"{path}: name a draft length with --drafts: {', '.join(map(str, sorted(curve)))}")
    return curve[drafts]


def gate(store: Store, reference: float, margin: float | None) -> list[Held]:
    """Every speculative engine of a run against a reference length."""
    tables = lengths(store)
    if not tables:
        raise UsageError(f"no engine of {store.path} tells each request's steps with a draft; see docs/engines.md")
    return [_held(label, table, reference, MARGIN if margin is None else margin) for label, table in tables.items()]


def _held(label: str, table: pd.DataFrame, reference: float, margin: float) -> Held:
    interval = stats.ratio(table, "accepted", "draft_steps", minus=-1.0)
    least = 1 + (reference - 1) * (1 - margin)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    verdict = "inconclusive"
    if low is not None and high is not None:
        verdict = "pass" if low >= least else "fail" if high < least else "inconclusive"
    return Held(label, reference, float("nan") if interval is None else interval.estimate, low, high, verdict)


def exit_code(rows: list[Held]) -> int:
    """Of the worst verdict."""
    verdicts = {row.verdict for row in rows}
    worst = "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"
    return EXIT[worst]
