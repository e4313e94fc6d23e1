"""The curve of a stored cell's e-value, which needs no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.audit.bets import bet
from stridebench.harness.audit.verdict import audit
from stridebench.harness.cli.report import NO_BETS, POINTS, evidence_of
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.run.auditing import audit_facts
from stridebench.reports.html.figures import Chart
from tests.support import page_runs
from tests.support.fake_store import empty, meta, record, step
from tests.support.samplers import drawn, simulated


def audited(folder: Path, outputs: int, **changes: Any) -> tuple[SealedCell, float]:
    """A stored cell at T = 1 with the bets on each output, and the e-value of its audit."""
    outcomes = simulated(3, 20)
    row, none = np.arange(3), np.zeros(3, dtype=np.int64)
    places = [drawn(outcomes.p, 1, seed)[0] for seed in range(outputs)]
    bets = [bet(outcomes, outcomes.ids[row, at], none, outcomes.p[row, at]) for at in places]
    records = [record(f"p{i:03d}", [step(1, 2)], audit=one.plain()) for i, one in enumerate(bets)]
    result = audit(bets)
    fake = empty().add(meta("ar", role="baseline", **{**audit_facts(result).stored(), **changes}), records)
    return page_runs.stored(fake, folder).cell("ar"), result.log_e


def test_the_curve_begins_at_one_and_ends_at_the_audit(tmp_path: Path) -> None:
    cell, log_e = audited(tmp_path / "run", 4)
    chart = evidence_of(cell)
    assert isinstance(chart, Chart)
    [curve] = chart.spec["data"]
    assert curve["x"] == [0, 3, 6, 9, 12] and curve["y"][0] == 0
    assert curve["y"][-1] == pytest.approx(log_e / np.log(10), abs=1e-3)


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path: Path) -> None:
    chart = evidence_of(audited(tmp_path / "run", 2 * POINTS + 1)[0])
    assert isinstance(chart, Chart) and chart.spec["data"][0]["x"][-1] == 3 * (2 * POINTS + 1)
    assert POINTS <= len(chart.rows) <= POINTS + 2


def test_what_is_missing_for_a_curve_is_said(tmp_path: Path) -> None:
    records = [record("p0", [step(1, 2)])]
    fake = empty().add(meta("ar", role="baseline", audit_log_e=0.3), records).add(meta("other"), records)
    store = page_runs.stored(fake, tmp_path / "run")
    assert evidence_of(store.cell("ar")) == NO_BETS and evidence_of(store.cell("other")) is None
