"""EAGLE-1: exact trees of sampled tokens, of a fixed shape."""

from __future__ import annotations

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.methods.drafters.tree_shapes import published
from stridebench.methods.eagle1 import Eagle1
from tests.support.feature_toys import run_on


class TestShape:
    def test_a_step_reads_the_whole_tree(self) -> None:
        model = Tabular("tabular", {"vocabulary": 6, "context": 200})
        steps = decode(Eagle1(tree="eagle_25"), run_on(model, Sampling(1.0), 60, (0, 1))).steps
        assert (steps[0].drafted, steps[0].rows, steps[0].nfe, steps[0].draft_nfe) == (25, 26, 1, 5)

    def test_at_t_0_its_children_are_the_likeliest(self) -> None:
        """Greedy siblings are the four best tokens: they differ, and none is drawn."""
        model = Tabular("tabular", {"vocabulary": 6, "context": 200})
        first, second = (
            decode(Eagle1(tree="eagle_25"), run_on(model, Sampling(0.0), 40, (0, 1), seed=seed)) for seed in (0, 1)
        )
        assert first.tokens == second.tokens
        assert [step.accepted for step in first.steps] == [step.accepted for step in second.steps]

    def test_a_vocabulary_cuts_the_ranks_that_it_lacks_from_a_published_tree(self) -> None:
        """Ranks 0 to 2 of the 25 nodes; every step proposes them all while there is room."""
        small = published("eagle_25", 9, 3, 3)
        assert int(small.ranks.max()) == 2
        model = Tabular("tabular", {"vocabulary": 3, "context": 60})
        steps = decode(Eagle1(tree="eagle_25"), run_on(model, Sampling(0.0), 40, (0, 1))).steps
        assert steps[0].drafted == sum(small.sizes) < 25


class TestRefused:
    def test_an_unknown_tree_is_refused(self) -> None:
        with pytest.raises(UnknownNameError, match="eagle_25"):
            decode(Eagle1(tree="eagle_24"), run_on(Tabular("tabular", {}), Sampling(1.0), 8, (0, 1)))

    def test_a_tree_larger_than_its_candidates_is_refused(self) -> None:
        with pytest.raises(UsageError, match="takes the 4 best tokens"):
            published("eagle_25", 9, 3)
        with pytest.raises(UsageError, match="4 siblings of a vocabulary of 3"):
            decode(Eagle1(widths=(4,)), run_on(Tabular("tabular", {"vocabulary": 3}), Sampling(1.0), 8, (0, 1)))
