"""Shapes of trees: templates, branching and cuts."""

from __future__ import annotations

import pytest

from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.tree_shapes import branching, template


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
