"""An audit, a run and the gate refute from the same e-value on."""

from __future__ import annotations

from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.metrics import refuting, refuting_in


def test_the_bound_grows_with_the_number_of_samplers() -> None:
    assert (refuting(0), refuting(1), refuting(5)) == (1000.0, 1000.0, 5000.0)


def test_a_finished_run_has_the_bound_that_it_stored() -> None:
    claiming = CellMeta(claim="SAME_LAW", audit_log_e=0.0)
    other = CellMeta(claim="APPROXIMATE", audit_log_e=0.0, audit_threshold=9000.0)
    greedy = CellMeta(claim="SAME_LAW")
    assert refuting_in([claiming, claiming, other, greedy]) == 2000.0
    assert refuting_in([claiming.merged(CellMeta(audit_threshold=3000.0)), claiming]) == 3000.0
    assert refuting_in([]) == 1000.0
