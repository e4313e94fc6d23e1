"""The e-value of a stored cell after each of its outputs, for the cell's page; no weights are needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stridebench.harness.record.metrics import REFUTED

if TYPE_CHECKING:
    from stridebench.harness.record.store import Cell
    from stridebench.reports.html.figures import Chart

NO_BETS = "the run stored the e-value alone, and not the bets on each output"
POINTS = 200
"""Outputs of a curve; of more, equally spaced ones and the last are drawn."""


def evidence_of(cell: Cell) -> Chart | str | None:
    """The chart of a cell's e-value; why there is none; or None, where the cell was not audited."""
    if cell.meta.get("audit_log_e") is None:
        return None
    counted = cell.samples[(cell.samples["status"] == "ok") & ~cell.samples["warmup"].astype(bool)]
    stored = [json.loads(text) if isinstance(text, str) else {} for text in counted.get("audit", ())]
    audited = [bets for bets, tokens in zip(stored, counted["tokens"], strict=False) if len(tokens)]
    if not audited or any("gains" not in bets for bets in audited):
        return NO_BETS
    from stridebench.harness.audit.bets import Bets
    from stridebench.harness.audit.verdict import evidence_path
    from stridebench.reports.html.figures import evidence_chart

    path = evidence_path([Bets.of(bets) for bets in audited])
    drawn = [*path[: -1 : max(1, len(path) // POINTS)], path[-1]]
    refuted = float(cell.meta.get("audit_threshold") or REFUTED)
    return evidence_chart([0, *(tokens for tokens, _ in drawn)], [0.0, *(log_e for _, log_e in drawn)], refuted)
