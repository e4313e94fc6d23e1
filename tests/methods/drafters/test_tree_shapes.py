"""Shapes of trees: templates, branching and cuts."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.methods.drafters.tree_shapes import best_tree, branching, choices, published, template


class TestTemplates:
    def test_paths_become_levels(self) -> None:
        shape = template([(0,), (1, 0), (0, 2), (1,), (0, 0), (0, 0, 0)])
        assert shape.parents.tolist() == [-1, -1, 0, 0, 1, 2]
        assert shape.ranks.tolist() == [0, 1, 0, 2, 0, 0]
        assert (shape.sizes, shape.inner, shape.width) == ((2, 3, 1), 6, 3)

    def test_branching_and_chains(self) -> None:
        assert branching((2, 1, 2)).parents.tolist() == [-1, -1, 0, 1, 2, 2, 3, 3]
        assert branching((1, 1, 1)).parents.tolist() == [-1, 0, 1]
        assert branching(()).sizes == ()

    def test_a_cut_keeps_whole_levels(self) -> None:
        shape = branching((2, 2, 1))
        assert shape.cut(2, 60).sizes == (2, 4)
        assert shape.cut(3, 9).sizes == (2, 4)
        assert shape.cut(3, 10).parents.tolist() == shape.parents.tolist()
        assert (shape.cut(0, 60).sizes, shape.cut(-1, 60).sizes, shape.cut(3, 1).sizes) == ((), (), ())
        assert shape.cut(1, 60).ranks.tolist() == [0, 1]

    @pytest.mark.parametrize("wrong", [[()], [(0,), (0,)], [(0,), (1, 0)]])
    def test_paths_that_are_no_tree_are_refused(self, wrong: list[tuple[int, ...]]) -> None:
        with pytest.raises(UsageError, match="is empty, twice there or hangs from no other path"):
            template(wrong)

    def test_a_level_without_children_is_refused(self) -> None:
        with pytest.raises(UsageError, match="each level has 1 child a node or more"):
            branching((2, 0))


# Published trees, and trees of the best nodes by measured shares.


class TestTrees:
    def test_the_best_nodes_by_the_products_of_their_shares(self) -> None:
        """0.6, 0.3 = 0.6 x 0.5, 0.24 (second child of the root), 0.12 = 0.24 x 0.5, 0.06 = 0.6 x 0.1."""
        ranks = [[0.6, 0.24], [0.5, 0.1]]
        tree = best_tree(ranks, 5)
        expected = template([(0,), (0, 0), (1,), (1, 0), (0, 1)])
        assert torch.equal(tree.parents, expected.parents) and torch.equal(tree.ranks, expected.ranks)
        assert len(best_tree(ranks, 99).parents) == 2 + 4

    @pytest.mark.parametrize(
        ("name", "levels", "sizes"),
        [
            ("mc_sim_7b_63", 4, (10, 28, 23, 2)),
            ("vicuna_7b_stage2", 4, (10, 23, 23, 7)),
            ("eagle_25", 9, (4, 8, 8, 3, 2)),  # what EAGLE's released code calls mc_sim_7b_63
            ("naive_extend_57", 9, (5, 13, 16, 14, 9)),
            ("recycling_80", 6, (8, 21, 25, 15, 8, 3)),
        ],
    )
    def test_the_published_trees(self, name: str, levels: int, sizes: tuple[int, ...]) -> None:
        assert published(name, levels, 10).sizes == sizes
        assert len(set(choices()[name])) == sum(sizes)

    def test_a_tree_larger_than_the_heads_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"4 levels deep and takes the 10 best tokens.*3 levels of 10 candidates"):
            published("mc_sim_7b_63", 3, 10)
        with pytest.raises(UsageError, match="4 levels of 2 candidates"):
            published("mc_sim_7b_63", 4, 2)
        with pytest.raises(UnknownNameError, match="mc_sim_7b_63"):
            published("mc_sim_7b", 4, 10)
