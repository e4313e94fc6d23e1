"""k-SEQ: the output distribution, enumerated over drafts and coins; rho and repeated nodes by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.methods.drafters.draft_model import siblings
from stridebench.methods.verifiers.k_seq import k_seq, merge, verify_k_seq
from stridebench.methods.verifiers.tree import children, trie
from tests.support.first_token import Emitted, distributions, rows, star


@pytest.mark.slow
@settings(max_examples=8)
@given(p=distributions, q=distributions, k=st.integers(1, 2))
def test_k_seq_has_the_targets_distribution(p: torch.Tensor, q: torch.Tensor, k: int) -> None:
    def act(draws: Draws) -> tuple[Draft, Acceptance]:
        drawn = siblings(q[None], k, draws, True)
        draft = star(drawn.tokens, drawn.probs)
        return draft, verify_k_seq(draft, rows(p, k), draws, k)

    emitted = Emitted.of(act)
    torch.testing.assert_close(emitted.probs, p, rtol=0, atol=1e-12)
    overlap = float(torch.minimum(p, q).sum())
    assert overlap - 1e-4 <= emitted.accepted <= 1 - (1 - overlap) ** k + 1e-12, (
        "at least that of one try, at most that of k"
    )


def test_k_seq_accepts_every_first_draft_of_the_targets_own_distribution() -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    for tokens in ([0, 1], [2, 2]):
        tree = trie(torch.tensor([tokens]))
        kids = children(tree.parents, 1, 2)
        assert k_seq(torch.tensor(tokens), rows(p, 1), rows(p, 2), tree, kids).accept_probs[0] == 1.0


def test_rho_by_hand() -> None:
    """Two tries at p = (1, 0), q = (1/2, 1/2): the best rho solves 1 - (1 - b)^2 = rho b with b = 1/2 where rho < 2."""
    p = torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)
    q = torch.full((2, 2), 0.5, dtype=torch.float64)
    tree = trie(torch.tensor([[0, 1]]))
    judgement = k_seq(torch.tensor([0, 1]), q, p, tree, children(tree.parents, 1, 2))
    assert judgement.accept_probs.tolist() == pytest.approx([1.0, 0.0], abs=1e-4)  # rho = 3/2: 1 / (3/2 x 1/2) > 1
    assert judgement.residuals[0].tolist() == [1.0, 0.0]


def test_a_repeated_node_adds_to_the_node_that_it_repeats() -> None:
    """Candidates a, b, a with probabilities 1/2, 1/4, 1/2: a is first or third, b second."""
    tree = trie(torch.tensor([[0, 1, 0]]))
    accept_probs = merge(torch.tensor([0.5, 0.25, 0.5], dtype=torch.float64), tree)
    a, b = 0.5 + 0.5 * 0.75 * 0.5, 0.5 * 0.25
    assert accept_probs.tolist() == pytest.approx([a, b / (1 - a), 0.0], abs=1e-12)
