"""ADT-Tree: its sizes follow acceptance."""

from __future__ import annotations

from itertools import pairwise

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.loop import advance, decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.adt_tree import ADTTree
from stridebench.methods.eagle2 import Eagle2
from tests.support.feature_toys import run_on, started

MODEL = Tabular("tabular", {"vocabulary": 20, "grid": (6, 6), "context": 200})


def test_lantern_without_neighbours_is_exact() -> None:
    assert ADTTree(acceptance="lantern", delta=0.0).claim is Claim.SAME_LAW


class TestSizes:
    def test_they_follow_acceptance(self) -> None:
        """Horizontal, at a temperature at which most drafts of this drafter are rejected."""
        run = run_on(MODEL, Sampling(1.0), 36, (0, 1))
        method = ADTTree(first=(2, 4), nodes=200, widths=(2, 20), step_k=2)
        state = started(method, run)
        history = []
        while run.room > 8:
            size = state.sizes.choose(run)
            result = advance(method, run, state)
            history.append((size, len(result.read.path)))
        assert len({size for size, _ in history}) > 2
        for (size, accepted), (following, _) in pairwise(history):
            sign = 1 if accepted / size.depth >= 1 else -1
            assert following.depth == min(max(size.depth + sign, 1), 9)
            assert following.width == min(max(size.width - 2 * sign, 2), 20)

    def test_a_tree_of_fixed_size_is_eagle2s(self) -> None:
        fixed = ADTTree(first=(3, 4), depths=(3, 3), widths=(4, 4), nodes=12)
        adt_tree, eagle2 = (
            decode(m, run_on(MODEL, Sampling(1.0), 36, (0, 1))) for m in (fixed, Eagle2(sizing="given"))
        )
        assert adt_tree.tokens == eagle2.tokens
        assert [step.drafted for step in adt_tree.steps] == [step.drafted for step in eagle2.steps]
