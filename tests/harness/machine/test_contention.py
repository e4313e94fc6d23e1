"""What is said of a busy machine, from given loads."""

from __future__ import annotations

from stridebench.harness.machine import noise


def test_a_busy_machine_is_said() -> None:
    assert noise.busy(0.9, 2) is None
    assert noise.busy(3.24, 2) == (
        "this machine is busy: a load of 3.2 on 2 cores before the run, which disturbs its times"
    )
