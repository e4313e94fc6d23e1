"""LANTERN: EAGLE-2 without neighbours, another output distribution with them."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy.tabular import Tabular
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import GRID_CASES
from stridebench.harness.proof.distance import distance, method_law, total_variation
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.lantern import Lantern
from stridebench.methods.verifiers.lantern import Residual
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 9, "grid": (4, 4, 8), "sharpness": 2.0})


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_at_delta_0_it_is_the_targets(self, resid: Residual) -> None:
        assert distance(Lantern(delta=0.0, resid=resid), GRID_CASES[1]) < 1e-12

    def test_at_delta_0_it_is_eagle2s(self) -> None:
        lantern = method_law(Lantern(delta=0.0), GRID_CASES[0])
        assert total_variation(lantern, method_law(Eagle2(), GRID_CASES[0])) < 1e-12

    def test_the_claim_follows_delta(self) -> None:
        assert Lantern().claim is Claim.APPROXIMATE
        assert Lantern(delta=0.0).claim is Claim.SAME_LAW


def accepted(delta: float, temperature: float) -> float:
    """Accepted drafts a step, over four decodes."""
    steps = [
        step
        for seed in range(4)
        for step in decode(Lantern(k=3, delta=delta), run_on(MODEL, Sampling(temperature), 20, (0, 1), seed)).steps
    ]
    return sum(step.accepted for step in steps) / len(steps)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_is_accepted_with_a_larger_delta(temperature: float) -> None:
    assert accepted(0.0, temperature) < accepted(0.3, temperature) <= accepted(1.0, temperature)
