"""One token a pass, each drawn from the target's warped distribution."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.autoregressive import Autoregressive

MODEL = Tabular("tabular", {"vocabulary": 5})
PROMPT = (0, 1, 2)


def decoded(sampling: Sampling, budget: int = 12, seed: int = 0, model: Tabular = MODEL) -> Decode:
    draws = SeededDraws(seed, "t", "p", 0)
    return decode(Autoregressive(), open_run(model, lambda name: model, PROMPT, sampling, budget, draws))


def test_one_pass_one_row_one_token_and_no_draft() -> None:
    result = decoded(Sampling(1.0))
    assert len(result.tokens) == len(result.steps) == 12
    for step in result.steps:
        assert (step.nfe, step.rows, step.emitted, step.draft_nfe) == (1, 1, 1, 0)
        assert (step.drafted, step.tested, step.accepted, step.overshoot, step.expected) == (0, 0, 0, 0, 0.0)


def test_a_seed_repeats_its_tokens_and_another_seed_has_others() -> None:
    assert decoded(Sampling(1.0), 40).tokens == decoded(Sampling(1.0), 40).tokens
    assert decoded(Sampling(1.0), 40).tokens != decoded(Sampling(1.0), 40, seed=1).tokens


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-6)])
def test_the_distribution_is_warped(sampling: Sampling) -> None:
    assert decoded(sampling).tokens == decoded(Sampling(0.0)).tokens
