"""EAGLE-2 and EAGLE-3, whose trees are the same: the drafter's best nodes, with the target's output distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.methods.drafters.eagle import drafter as drafters
from stridebench.methods.drafters.eagle.drafter import Candidates, grow_best, rerank
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from tests.support.feature_toys import run_on, started
from tests.support.tree_paths import token_paths


class TestTree:
    def test_its_nodes_are_the_best_of_all_candidates(self) -> None:
        """Two levels of all four tokens: the seven paths with the largest products of q."""
        run = run_on(Tabular("tabular", {"vocabulary": 4}), Sampling(1.0), 40, (0, 1, 2))
        drafter = started(Eagle2(), run).drafter
        reader = drafter.root(run)
        assert reader is not None
        first = reader.first.log_softmax(-1)[0]
        second = reader.read(Draft(torch.arange(4), parents=torch.full((4,), -1))).log_softmax(-1) + first[:, None]
        scores: dict[tuple[int, ...], float] = {(a,): float(first[a]) for a in range(4)}
        scores |= {(a, b): float(second[a, b]) for a in range(4) for b in range(4)}
        draft = drafters.grow_dynamic(run, drafter, 2, 4, 7).draft
        best = sorted(scores, key=lambda tokens: -scores[tokens])[:7]
        assert set(token_paths(draft.tokens.tolist(), parents_of(draft))) == set(best)

    @pytest.mark.parametrize("kind", [Eagle2, Eagle3])
    def test_counts_of_a_step(self, kind: type[Eagle2 | Eagle3]) -> None:
        model = Tabular("tabular", {"vocabulary": 20, "context": 200})
        step = decode(kind(depth=4, width=10, nodes=59), run_on(model, Sampling(1.0), 60, (0, 1))).steps[0]
        assert (step.nfe, step.draft_nfe, step.drafted, step.rows) == (1, 5, 59, 60)
        assert step.levels <= 5
        assert step.levels_built == 5, "the paper's mean tree depth of this setting is 5.00"

    def test_the_drafters_confidence_is_that_of_temperature_one(self) -> None:
        """So that a greedy decode has a tree, too."""
        model = Tabular("tabular", {"vocabulary": 4})
        drafts = []
        for temperature in (0.0, 1.0):
            run = run_on(model, Sampling(temperature), 40, (0, 1, 2))
            drafts.append(drafters.grow_dynamic(run, started(Eagle2(), run).drafter, 3, 2, 6).draft.tokens.tolist())
        assert drafts[0] == drafts[1]


def test_warped_confidence_ranks_nodes_by_the_sampled_distribution() -> None:
    """At T = 4 with top-k 2 each node has two likely children, as LANTERN ranks them; at T = 0 it ranks as raw."""
    model = Tabular("tabular", {"vocabulary": 6})

    def tree(sampling: Sampling, nodes: int, **settings: Any) -> Draft:
        run = run_on(model, sampling, 40, (0, 1, 2))
        return drafters.grow_dynamic(run, started(Eagle2(), run).drafter, 2, 3, nodes, **settings).draft

    hot = Sampling(4.0, top_k=2)
    run = run_on(model, hot, 40, (0, 1, 2))
    reader = started(Eagle2(), run).drafter.root(run)
    assert reader is not None
    likely = set(run.probs(reader.first)[0].nonzero()[:, 0].tolist())
    roots = {node: token for node, token in enumerate(tree(hot, 6, confidence="warped").tokens.tolist()[:2])}
    assert set(roots.values()) == likely
    assert torch.bincount(tree(hot, 6, confidence="warped").explicit_parents + 1).tolist() == [2, 2, 2]
    cold = Sampling(0.0)
    assert tree(cold, 6, confidence="warped").tokens.tolist() == tree(cold, 6).tokens.tolist()


def test_a_step_reports_the_rank_of_an_accepted_node_among_its_siblings() -> None:
    """The loop's ranks are those of a second drafter that reads the same text."""
    model = Tabular("tabular", {"vocabulary": 6, "context": 200})
    run, again = (run_on(model, Sampling(1.0), 40, (0, 1, 2)) for _ in range(2))
    method = Eagle2(depth=0, width=4, nodes=4)
    decoded = decode(method, run)
    fresh = started(method, again)
    text, ranks = [0, 1, 2], []
    for step in decoded.steps:
        again.target.sync(text)
        again.target.prefill()
        reader = fresh.drafter.root(again)
        assert reader is not None
        if step.accepted:
            token = decoded.tokens[len(text) - 3]
            ranks.append((step.ranks, (reader.first[0].argsort(descending=True).tolist().index(token),)))
        else:
            assert step.ranks == ()
        text += decoded.tokens[len(text) - 3 :][: step.emitted]
    assert len({reported for reported, _ in ranks}) > 1
    assert all(reported == expected for reported, expected in ranks)


# Growth and rerank of trees against plain loops over nodes.


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
