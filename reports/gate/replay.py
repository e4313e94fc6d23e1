"""The gate along stored texts: the baseline's scores of each position against those of today.

Both sides draft for the same positions of the same texts, so the noise of decoding is absent. What remains is how
differently a change acts on different prompts, and rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from stridebench.harness.errors import UsageError, number_of
from stridebench.harness.record import stats
from stridebench.reports.gate.baseline import TestedFigure, frame_of
from stridebench.reports.gate.decision import GateResult, GateRow, decide, worst

REPLAYED = TestedFigure("replayed acceptance", "expected", "positions")
MARGIN = 0.005
"""A replayed cell passes if a drop beyond this is excluded, and if a loss of ``LOSS`` would have been seen."""
LOSS = 0.01
COLUMNS = ["prompt", "repetition", "positions", "expected"]

ReplayRow = tuple[str, int, int, float]


def replay_gate(
    baseline: Mapping[str, Any],
    scores: Mapping[str, Sequence[ReplayRow]],
    errors: Mapping[str, str],
    tolerated: float | None = None,
    min_prompts: int = stats.FEWEST,
) -> GateResult:
    """Test every replayed cell of a baseline.

    Args:
        scores: prompt, repetition, positions and the sum of their values, by cell.
        errors: why a cell could not be replayed, by cell.
        tolerated: relative drop that never fails and always passes; if it is None, 0.2 % never fails and 0.5 % passes.
            A pass says that a loss of this size, 1 % if it is None, would have been seen.
    """
    replay = baseline.get("replay")
    if not replay:
        raise UsageError("the baseline holds no texts to replay; make it with `stride gate make RUN --replay`")
    rows, known = [], baseline.get("cells", {})
    for name, cell in replay["cells"].items():
        row = GateRow(name, cell["label"], "replay", "", "", title=REPLAYED.title)
        if name in errors or name not in scores:
            rows.append(_failed(row, errors.get(name, "it was not replayed")))
        else:
            clusters = frame_of(known[name]).get("cluster") if name in known else None
            rows.append(_test(row, _frame(cell["scores"], clusters), _frame(scores[name]), min_prompts))
    decided = decide(rows, tolerated, MARGIN, LOSS)
    skipped = [f"not replayed: {label}: {why}" for label, why in replay["skipped"].items()]
    return GateResult(worst(decided), tuple(decided), notes=tuple(skipped), loss=tolerated or LOSS)


def _failed(row: GateRow, why: str) -> GateRow:
    return replace(row, verdict="error", why=why)


def _frame(rows: Sequence[ReplayRow], clusters: pd.Series[str] | None = None) -> pd.DataFrame:
    frame = pd.DataFrame([list(row) for row in rows], columns=COLUMNS)
    frame = frame.set_index(["prompt", "repetition"]).astype(float)
    return frame if clusters is None else frame.assign(cluster=clusters.reindex(frame.index))


def _test(row: GateRow, before: pd.DataFrame, after: pd.DataFrame, min_prompts: int) -> GateRow:
    shared = before.index.intersection(after.index)
    lost = before.index.difference(after.index)
    if len(lost) or (before.loc[shared, "positions"] != after.loc[shared, "positions"]).any():
        return _failed(row, "texts or positions of the baseline were not replayed")
    prompts = shared.get_level_values("prompt").nunique()
    independent = stats.clusters(shared, before.get("cluster")).nunique()
    row = replace(row, pairs=len(shared), prompts=prompts, clusters=independent)
    row = replace(row, before=REPLAYED.value(before), after=REPLAYED.value(after.loc[shared]))
    if independent < max(min_prompts, stats.FEWEST):
        needed = max(min_prompts, stats.FEWEST)
        return replace(row, verdict="inconclusive", why=f"{number_of(prompts, 'prompt')}; {needed} are needed")
    if not after["expected"].notna().all():
        return replace(row, verdict="inconclusive", why="some values are not numbers")
    if before["expected"].equals(after.loc[before.index, "expected"]):
        row = replace(row, change=0.0, low=0.0, high=0.0, identical=len(shared))
        return replace(row, verdict="pass", why="identical")
    change = REPLAYED.change(before, after)
    if change is None or change.error is None:
        return replace(row, verdict="inconclusive", why="no draft of the baseline is ever accepted")
    bounds = change.interval(0.9)
    return replace(
        row, change=change.estimate, low=bounds.low, high=bounds.high, p=change.p_below(0.0), error=change.error
    )
