"""Verification by samples of the target: the same tokens as autoregressive decoding with the same clocks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.speculative import Speculative
from stridebench.methods.verifiers.rejection import match_probs, verify_match
from tests.support.one_by_one import OneByOne
from tests.support.toys import decoded


@dataclass(frozen=True)
class ByClocks(OneByOne):
    """Autoregressive decoding that draws by the clock of each position."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.race(p, [len(run.target)])[0]


def tokens(method: Method[object], sampling: Sampling) -> tuple[int, ...]:
    return decoded(method, sampling, 40, prompt=(0, 1, 2, 3), vocabulary=6).tokens


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=3)])
@pytest.mark.parametrize("verifier", ["match", "coupled"])
def test_the_output_is_that_of_autoregressive_decoding_with_the_same_clocks(verifier: str, sampling: Sampling) -> None:
    plain = tokens(ByClocks(), sampling)
    assert {tokens(Speculative("toy", gamma, verifier), sampling) for gamma in (1, 3, 7)} == {plain}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("coupled", [False, True])
def test_drafts_are_kept_as_often_as_expected(coupled: bool) -> None:
    """Two thousand positions with one pair of distributions: within five standard deviations."""
    q, p = torch.randn(2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    draws, kept, expected = SeededDraws(0, "t", "p", 0), 0, 0.0
    draws.end = 4_000
    for place in range(2_000):
        x = draws.race(q[None], [place]) if coupled else draws.categorical(q[None], "draft")
        acceptance = verify_match(x, q[None] if coupled else None, p.expand(2, -1), draws, place)
        kept, expected = kept + int(acceptance.path.stop), expected + float(acceptance.path.expected)
    assert abs(kept - expected) < 5 * (2_000 * 0.25) ** 0.5


def test_a_coupled_drafter_agrees_more_often_than_an_independent_one() -> None:
    generator = torch.Generator().manual_seed(0)
    q, p = torch.randn(2, 50, 9, generator=generator, dtype=torch.float64).softmax(-1)
    coupled, alone = (
        sum(q[:, v] * match_probs(torch.full((50,), v), law, torch.cat([p, p[:1]])) for v in range(9))
        for law in (q, None)
    )
    distance = (p - q).abs().sum(-1) / 2
    assert bool((coupled >= (1 - distance) / (1 + distance) - 1e-12).all()) and float((coupled - alone).min()) > 0
    assert bool((coupled <= 1 - distance + 1e-12).all())
