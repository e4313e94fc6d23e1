"""EAGLE-2 and EAGLE-3, whose trees are the same: the drafter's best nodes, with the target's output distribution."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.toy.tabular import Tabular
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import CASES, GRID_CASES
from stridebench.methods.drafters.eagle import drafter as drafters
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from tests.support.feature_toys import run_on, started

SMALL = tuple(case for case in CASES + GRID_CASES if case.outputs <= 27)
KINDS = (Eagle2, Eagle3)
EAGLE = type[Eagle2] | type[Eagle3]
each_method = pytest.mark.parametrize("kind", KINDS)


class TestTree:
    @each_method
    def test_its_nodes_are_the_best_of_all_candidates(self, kind: EAGLE) -> None:
        """Two levels of all four tokens: the seven paths with the largest products of q."""
        run = run_on(Tabular("tabular", {"vocabulary": 4}), Sampling(1.0), 40, (0, 1, 2))
        drafter = started(kind(), run).drafter
        reader = drafter.root(run)
        assert reader is not None
        first = reader.first.log_softmax(-1)[0]
        second = reader.score(Draft(torch.arange(4), parents=torch.full((4,), -1))) + first[:, None]
        scores: dict[tuple[int, ...], float] = {(a,): float(first[a]) for a in range(4)}
        scores |= {(a, b): float(second[a, b]) for a in range(4) for b in range(4)}
        draft = drafters.grow_dynamic(run, drafter, 2, 4, 7).draft
        best = sorted(scores, key=lambda tokens: -scores[tokens])[:7]
        assert {path(draft, node) for node in range(7)} == set(best)

    @each_method
    def test_counts_of_a_step(self, kind: EAGLE) -> None:
        model = Tabular("tabular", {"vocabulary": 20, "context": 200})
        step = decode(kind(depth=4, width=10, nodes=59), run_on(model, Sampling(1.0), 60, (0, 1))).steps[0]
        assert (step.nfe, step.draft_nfe, step.drafted, step.rows) == (1, 5, 59, 60)
        assert step.levels <= 5
        assert step.levels_built == 5, "the paper's mean tree depth of this setting is 5.00"

    @each_method
    def test_the_drafters_confidence_is_that_of_temperature_one(self, kind: EAGLE) -> None:
        """So that a greedy decode has a tree, too."""
        model = Tabular("tabular", {"vocabulary": 4})
        drafts = []
        for temperature in (0.0, 1.0):
            run = run_on(model, Sampling(temperature), 40, (0, 1, 2))
            drafts.append(drafters.grow_dynamic(run, started(kind(), run).drafter, 3, 2, 6).draft.tokens.tolist())
        assert drafts[0] == drafts[1]


@each_method
def test_a_step_reports_the_rank_of_an_accepted_node_among_its_siblings(kind: EAGLE) -> None:
    """The loop's ranks are those of a second drafter that reads the same text."""
    model = Tabular("tabular", {"vocabulary": 6, "context": 200})
    run, again = (run_on(model, Sampling(1.0), 40, (0, 1, 2)) for _ in range(2))
    method = kind(depth=0, width=4, nodes=4)
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


def path(draft: Draft, node: int) -> tuple[int, ...]:
    """Tokens from the root down to a node."""
    above = int(draft.explicit_parents[node])
    return (*(path(draft, above) if above >= 0 else ()), int(draft.tokens[node]))
