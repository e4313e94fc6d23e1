"""Trees as tensors: templates, growth and rerank against plain loops over nodes, tries and who hangs from whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.backbones.toy.tabular import Tabular
from harness.core.clock import CpuClock, Stopwatch
from harness.core.draft import Draft
from harness.core.session import Session
from harness.errors import UsageError
from methods.trees.growth import Candidates, grow_best, rerank
from methods.trees.shapes import branching, template
from methods.trees.structure import children, paths, repeats, trie

MODEL = Tabular("tabular", {"vocabulary": 7, "seed": 3, "context": 64})


def parents_of(draft: Draft) -> list[int]:
    return draft.explicit_parents.tolist()


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    return () if node < 0 else (*path_to(parents, parents[node]), node)


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


def by_hand(levels: int, width: int) -> list[tuple[float, tuple[int, ...]]]:
    """The candidates as (score, path of tokens): every prefix read alone, the best w of each level expanded."""

    def best(tokens: tuple[int, ...]) -> list[tuple[float, int]]:
        session = Session(MODEL.cache(), MODEL.capabilities, [0, 1, *tokens], stopwatch=Stopwatch(CpuClock()))
        logs = session.forward()[0].log_softmax(-1).tolist()
        return sorted(((log, token) for token, log in enumerate(logs)), reverse=True)[:width]

    level = [(log, (token,)) for log, token in best(())]
    candidates = list(level)
    for _ in range(1, levels):
        frontier = sorted(level, reverse=True)[:width]
        level = [(score + log, (*path, token)) for score, path in frontier for log, token in best(path)]
        candidates += level
    return candidates


def grow_by_drafter(levels: int, width: int) -> tuple[Candidates, Session]:
    session = Session(MODEL.cache(), MODEL.capabilities, [0, 1], stopwatch=Stopwatch(CpuClock()), kind="draft")
    first = session.forward().log_softmax(-1)
    return grow_best(first, lambda nodes: session.grow(nodes).log_softmax(-1), levels, width), session


def token_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[k] for k in path_to(parents, node)) for node in range(len(tokens))]


class TestGrowth:
    @pytest.mark.parametrize(("levels", "width"), [(1, 3), (2, 2), (4, 3), (3, 1)])
    def test_growth_level_by_level_equals_reading_every_prefix_alone(self, levels: int, width: int) -> None:
        candidates, session = grow_by_drafter(levels, width)
        expected = dict((path, score) for score, path in by_hand(levels, width))
        assert len(candidates.tokens) == width + (levels - 1) * width**2
        walks = token_paths(candidates.tokens.tolist(), candidates.parents.tolist())
        assert dict(zip(walks, candidates.scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-12)
        assert session.passes == levels
        assert session.rows == 2 + (levels - 1) * width, "the prompt, then each node of a frontier once"

    @pytest.mark.parametrize("size", [1, 5, 11, 40])
    def test_rerank_keeps_the_best_and_whole_paths(self, size: int) -> None:
        candidates, _ = grow_by_drafter(3, 3)
        draft = rerank(candidates, size)
        best = sorted(by_hand(3, 3), reverse=True)[:size]
        assert sorted(token_paths(draft.tokens.tolist(), parents_of(draft))) == sorted(path for _, path in best)
        assert draft.probs is None

    def test_of_equal_scores_a_node_goes_before_its_children(self) -> None:
        candidates = Candidates(torch.tensor([4, 5, 6, 4]), torch.tensor([-1, -1, 1, 2]), torch.zeros(4).double())
        assert parents_of(rerank(candidates, 3)) == [-1, -1, 1]
        lower = candidates._replace(scores=torch.tensor([-1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
        draft = rerank(lower, 3)
        assert (draft.tokens.tolist(), parents_of(draft)) == ([5, 6, 4], [-1, 0, 1])

    def test_impossible_tokens_and_a_width_above_the_vocabulary(self) -> None:
        first = torch.tensor([[0.0, -torch.inf, -torch.inf]])
        candidates = grow_best(first, lambda nodes: first.expand(len(nodes), -1), 3, 5)
        assert len(candidates.tokens) == 3 + 2 * 9
        draft = rerank(candidates, 3)
        assert (draft.tokens.tolist(), parents_of(draft)) == ([0, 0, 0], [-1, 0, 1])


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_trie_merges_equal_prefixes(continuations: list[list[int]]) -> None:
    count = len(continuations)
    tree = trie(torch.tensor(continuations).T)
    walks = token_paths([row[level] for level in range(3) for row in continuations], tree.parents.tolist())
    for level, j in itertools.product(range(3), range(count)):
        node, prefix = level * count + j, tuple(continuations[j][: level + 1])
        assert walks[node] == prefix
        same = [i for i in range(count) if tuple(continuations[i][: level + 1]) == prefix]
        assert tree.first[node] == level * count + same[0]
    merged = tree.first == torch.arange(3 * count)
    assert len({walks[node] for node in merged.nonzero()[:, 0].tolist()}) == int(merged.sum()) == len(set(walks))


@given(st.data())
def test_children_paths_and_repeats_against_loops(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9))
    parents = [data.draw(st.integers(-1, k - 1)) for k in range(size)]
    tokens = [data.draw(st.integers(0, 1)) for _ in range(size)]
    walks, on = token_paths(tokens, parents), torch.tensor(parents)
    table = children(on, size + 1, size).tolist()
    assert [[k for k in row if k >= 0] for row in table] == [
        [k for k in range(size) if parents[k] == row - 1] for row in range(size + 1)
    ]
    assert [tuple(k for k in row if k >= 0) for row in paths(on, size).tolist()] == [
        path_to(parents, node) for node in range(size)
    ]
    repeated: list[bool] = []
    for node in range(size):
        equal_sibling = any(parents[k] == parents[node] and tokens[k] == tokens[node] for k in range(node))
        repeated.append(equal_sibling or (parents[node] >= 0 and repeated[parents[node]]))
    assert repeats(torch.tensor(tokens), on).tolist() == repeated
    assert len({walks[k] for k in range(size) if not repeated[k]}) == repeated.count(False)
