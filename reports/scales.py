"""MuLo-SD's own figures: how much of a picture was not drawn again, and the speed-up that passes alone would give.

Symbols: T_p cells of a picture, T_q passes of the drafter, a share of the cells that kept their drafts.
Source: MuLo-SD, supplement 7, eq. 10.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Predicted:
    """Speed-ups over one target pass a cell, if a drafter's pass took as long as a target's.

    Args:
        acceptance: a, after dilation. eq10: T_p / ((1 - a) T_p + T_q), as published, without the passes that judge
            bands. corrected: with one such pass a band. counted: T_p over the passes that were made; more than
            ``corrected``, since the first cell redrawn in a band takes no pass of its own.
    """

    acceptance: float
    eq10: float
    corrected: float
    counted: float


def predicted(frame: pd.DataFrame) -> Predicted | None:
    """Over all rows of ``ledger.totals``, of a method whose steps fill bands; None where no drafter ran.

    Ends of rows are no cells: they count neither as tokens nor as passes.
    """
    total = frame[["emitted", "forced", "resampled", "draft_nfe", "nfe", "steps"]].sum().astype(float)
    cells = float(total["emitted"] - total["forced"])
    passes = float(total["resampled"] + total["draft_nfe"])
    if not total["draft_nfe"]:
        return None
    return Predicted(
        acceptance=1 - float(total["resampled"]) / cells,
        eq10=cells / passes,
        corrected=cells / (passes + float(total["steps"])),
        counted=cells / float(total["nfe"] + total["draft_nfe"]),
    )
