"""ADT-Tree: exact whatever its sizes do, and its sizes do what was accepted."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.backbones.toy.tabular import Tabular
from harness.core.loop import advance, decode
from harness.core.method import Claim
from harness.core.sampling import Sampling
from harness.errors import UsageError
from harness.proof.cases import GRID_CASES
from harness.proof.distance import distance
from harness.proof.mutants import try_mutants
from harness.proof.prove import prove
from methods.adt_tree import ADTTree
from methods.eagle2 import Eagle2
from tests.support.feature_toys import run_on, started

MODEL = Tabular("tabular", {"vocabulary": 20, "grid": (6, 6), "context": 200})


@pytest.mark.usefixtures("unchecked")
class TestLaw:
    @pytest.mark.parametrize("method", [m for m in ADTTree.variants() if m.acceptance == "exact"])
    def test_is_the_targets(self, method: ADTTree) -> None:
        proof = prove(method, mutants=False)
        assert proof.verdict == "exact", f"{proof.total_variation} at {proof.case}"

    def test_every_planted_bug_shows(self) -> None:
        for caught in try_mutants(ADTTree, [ADTTree(nodes=6, first=(2, 2), widths=(1, 3), step_k=1)]):
            assert caught.caught, caught.why

    def test_with_lantern_it_is_another(self) -> None:
        assert distance(ADTTree(nodes=6, acceptance="lantern", k=1, delta=0.4), GRID_CASES[1]) > 0.05

    def test_the_claim_is_that_of_the_acceptance(self) -> None:
        assert ADTTree().claim is Claim.SAME_LAW
        assert ADTTree(acceptance="lantern").claim is Claim.APPROXIMATE
        assert ADTTree(acceptance="lantern", delta=0.0).claim is Claim.SAME_LAW


class TestSizes:
    def test_follow_what_was_accepted(self) -> None:
        """Horizontal, at a temperature at which this drafter is refused often, and sometimes not."""
        run = run_on(MODEL, Sampling(1.0), 36, (0, 1))
        method = ADTTree(first=(2, 4), nodes=200, widths=(2, 20), step_k=2)
        state = started(method, run)
        seen = []
        while run.room > 8:
            size = state.sizes.choose(run)
            taken = advance(method, run, state)
            run.emitted += len(taken.emitted)
            seen.append((size, len(taken.read.path)))
        assert len({size for size, _ in seen}) > 2
        for (size, accepted), (after, _) in pairwise(seen):
            sign = 1 if accepted / size.depth >= 1 else -1
            assert after.depth == min(max(size.depth + sign, 1), 9)
            assert after.width == min(max(size.width - 2 * sign, 2), 20)

    def test_a_tree_that_may_not_move_is_eagle2s(self) -> None:
        fixed = ADTTree(first=(3, 4), depths=(3, 3), widths=(4, 4), nodes=12)
        ours, theirs = (decode(m, run_on(MODEL, Sampling(1.0), 36, (0, 1))) for m in (fixed, Eagle2()))
        assert ours.tokens == theirs.tokens
        assert [step.drafted for step in ours.steps] == [step.drafted for step in theirs.steps]

    def test_mean_depth_falls_where_drafts_are_refused(self) -> None:
        steps = decode(ADTTree(first=(9, 4)), run_on(MODEL, Sampling(1.0), 36, (0, 1))).steps
        assert steps[0].draft_nfe == 10
        assert 2 in {step.draft_nfe for step in steps}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"nodes": 0}, "nodes 0"), ({"depths": (0, 3)}, "depths are 0 to 3"), ({"delta": -1.0}, "the bound -1")],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ADTTree(**changes)  # type: ignore[arg-type]  # wrong on purpose
