"""LANTERN: EAGLE-2 without neighbours, another law with them."""

from __future__ import annotations

import pytest

from harness.backbones.toy.tabular import Tabular
from harness.core.loop import decode
from harness.core.method import Claim
from harness.core.sampling import Sampling
from harness.errors import UsageError
from harness.proof.cases import GRID_CASES
from harness.proof.distance import distance, method_law, total_variation
from harness.proof.mutants import try_mutants
from harness.proof.prove import prove
from methods.eagle2 import Eagle2
from methods.lantern import Lantern
from methods.verifiers.neighbourhood import Residual
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 9, "grid": (4, 4, 8), "sharpness": 2.0})


@pytest.mark.usefixtures("unchecked")
class TestLaw:
    @pytest.mark.parametrize("resid", ["code", "relaxed", "p_minus_q"])
    def test_without_neighbours_mass_it_is_the_targets(self, resid: Residual) -> None:
        proof = prove(Lantern(delta=0.0, resid=resid), mutants=False)
        assert proof.verdict == "exact", f"{proof.total_variation} at {proof.case}"

    def test_every_planted_bug_shows(self) -> None:
        for caught in try_mutants(Lantern, [Lantern(delta=0.0)]):
            assert caught.caught, caught.why

    @pytest.mark.parametrize("case", GRID_CASES[:2], ids=str)
    def test_with_it_the_law_is_another(self, case: object) -> None:
        assert distance(Lantern(k=1, delta=0.4), case) > 0.05  # type: ignore[arg-type]  # a case

    def test_without_it_the_output_is_eagle2s(self) -> None:
        ours = method_law(Lantern(delta=0.0), GRID_CASES[0])
        assert total_variation(ours, method_law(Eagle2(), GRID_CASES[0])) < 1e-12

    def test_the_claim_is_that_of_delta(self) -> None:
        assert Lantern().claim is Claim.APPROXIMATE
        assert Lantern(delta=0.0).claim is Claim.SAME_LAW


def accepted(delta: float, temperature: float) -> float:
    """Drafts kept a step, over four decodes."""
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


@pytest.mark.parametrize("changes", [{"k": -1}, {"delta": -0.1}, {"delta": float("nan")}])
def test_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="give neighbours and a mass, 0 or more"):
        Lantern(**changes)  # type: ignore[arg-type]  # a number either way
