"""LANTERN++: EAGLE-1 without neighbours, another output distribution with them."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import GRID_CASES
from stridebench.harness.proof.distance import distance
from stridebench.methods.drafters.tree_shapes import published
from stridebench.methods.lanternpp import LanternPlusPlus
from stridebench.methods.verifiers.lantern import Residual
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 9, "grid": (4, 4, 8), "sharpness": 2.0})
WIDTHS = (2, 1)


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_at_factor_0_it_is_the_targets(self, resid: Residual) -> None:
        assert distance(LanternPlusPlus(widths=WIDTHS, factor=0.0, resid=resid), GRID_CASES[1]) < 1e-12

    def test_the_claim_follows_the_factor(self) -> None:
        assert LanternPlusPlus().claim is Claim.APPROXIMATE
        assert LanternPlusPlus(factor=0.0).claim is Claim.SAME_LAW


@pytest.mark.usefixtures("unchecked")
def test_more_is_accepted_with_a_larger_factor() -> None:
    def accepted(factor: float) -> float:
        method = LanternPlusPlus(tree="eagle_25", k=3, factor=factor)
        decodes = [decode(method, run_on(MODEL, Sampling(1.0), 20, (0, 1), seed)) for seed in range(4)]
        return sum(step.accepted for result in decodes for step in result.steps) / sum(
            len(result.steps) for result in decodes
        )

    assert accepted(0.0) < accepted(4.0) <= accepted(50.0)


def test_the_released_tree() -> None:
    assert published("naive_extend_57", 9, 9).sizes == (5, 13, 16, 14, 9)
