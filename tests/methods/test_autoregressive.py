"""One token a pass, drawn from the target's distribution."""

from __future__ import annotations

from stridebench.harness.core.sampling import Sampling
from stridebench.methods.autoregressive import Autoregressive
from tests.support.toys import decoded


def test_one_pass_one_row_one_token_and_no_draft() -> None:
    result = decoded(Autoregressive(), Sampling(1.0), 12, vocabulary=5)
    assert len(result.tokens) == len(result.steps) == 12
    for step in result.steps:
        assert (step.nfe, step.rows, step.emitted, step.draft_nfe) == (1, 1, 1, 0)
        assert (step.drafted, step.tested, step.accepted, step.overshoot, step.expected) == (0, 0, 0, 0, 0.0)
