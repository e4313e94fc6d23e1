"""Growth and rerank of trees against plain loops over nodes."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.session import Session
from stridebench.methods.drafters.eagle.drafter import Candidates, grow_best, rerank
from tests.support.tree_paths import token_paths

MODEL = Tabular("tabular", {"vocabulary": 7, "seed": 3, "context": 64})


def parents_of(draft: Draft) -> list[int]:
    return draft.explicit_parents.tolist()


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
        draft = rerank(candidates, size).draft
        best = sorted(by_hand(3, 3), reverse=True)[:size]
        assert sorted(token_paths(draft.tokens.tolist(), parents_of(draft))) == sorted(path for _, path in best)
        assert draft.probs is None

    def test_of_equal_scores_a_node_goes_before_its_children(self) -> None:
        candidates = Candidates(torch.tensor([4, 5, 6, 4]), torch.tensor([-1, -1, 1, 2]), torch.zeros(4).double(), 3)
        assert parents_of(rerank(candidates, 3).draft) == [-1, -1, 1]
        lower = candidates._replace(scores=torch.tensor([-1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
        draft = rerank(lower, 3).draft
        assert (draft.tokens.tolist(), parents_of(draft)) == ([5, 6, 4], [-1, 0, 1])

    def test_impossible_tokens_and_a_width_above_the_vocabulary(self) -> None:
        first = torch.tensor([[0.0, -torch.inf, -torch.inf]])
        candidates = grow_best(first, lambda nodes: first.expand(len(nodes), -1), 3, 5)
        assert len(candidates.tokens) == 3 + 2 * 9
        draft = rerank(candidates, 3).draft
        assert (draft.tokens.tolist(), parents_of(draft)) == ([0, 0, 0], [-1, 0, 1])
