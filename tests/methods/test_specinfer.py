"""SpecInfer: trees of one drafter or several, cut to the room, counted without repeats."""

from __future__ import annotations

import pytest

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import Decode
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import distance
from stridebench.methods.drafters.tree_shapes import BranchingDrafter
from stridebench.methods.specinfer import SpecInfer
from tests.support import toys


def decoded(method: SpecInfer, sampling: Sampling, budget: int = 30) -> Decode:
    return toys.decoded(method, sampling, budget, prompt=(0, 1, 2, 3), vocabulary=5, context=80)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=3)])
def test_a_drafter_that_is_the_target_has_every_level_accepted(sampling: Sampling, replacement: bool) -> None:
    """The first child of every node is accepted, so its siblings are never tested."""
    result = decoded(SpecInfer("self", widths=(2, 2), replacement=replacement), sampling, budget=30)
    assert [(step.accepted, step.levels) for step in result.steps] == [(2, 2)] * 10
    assert all(step.expected >= 2 - 1e-12 for step in result.steps)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method", [SpecInfer("toy", widths=(1, 2), replacement=False), SpecInfer("toy", ("other",), widths=(1, 1))]
)
def test_trees_of_two_levels_are_exact(method: SpecInfer) -> None:
    """Settings too large for `stride verify`, on its smallest model."""
    assert distance(method, Case(2, 3, 10, Sampling(1.0))) < 1e-12


def test_counts_of_a_step() -> None:
    """Three nodes of a level below each of two, and two drafters; both read every level but the last."""
    method = SpecInfer("toy", ("other",), widths=(1, 2), replacement=False)
    for step in decoded(method, Sampling(1.0), budget=20).steps[:-2]:
        assert (step.nfe, step.draft_nfe, step.rows, step.levels) == (1, 4, 1 + 2 + 8, 2)
        assert 2 <= step.drafted <= 10


def test_repeats_are_read_and_not_counted() -> None:
    """Greedy siblings with replacement are all the same token."""
    steps = decoded(SpecInfer("toy", widths=(3, 1)), Sampling(0.0)).steps
    assert {(step.rows, step.drafted) for step in steps[:-2]} == {(7, 2)}


class Watched(BranchingDrafter):
    """Checks the entries of the drafters' sessions after each draft."""

    def propose(self, run: Run) -> Draft:
        draft = super().propose(run)
        inner = self.shape.inner - 1
        for session in self.sessions:
            assert session.tokens == run.target.tokens
            assert session.draft.tokens.tolist() == draft.tokens[:inner].tolist()
            assert session.draft.explicit_parents.tolist() == draft.explicit_parents[:inner].tolist()
        return draft


def test_drafters_read_the_tree_that_the_target_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.methods.specinfer.BranchingDrafter", Watched)
    result = decoded(SpecInfer("toy", ("other",), widths=(1, 1, 1)), Sampling(1.0))
    assert {step.accepted for step in result.steps} > {0, 1}


def test_more_distinct_siblings_than_tokens_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="6 siblings without replacement and a vocabulary of 5"):
        decoded(SpecInfer("toy", widths=(6,), replacement=False), Sampling(1.0))
