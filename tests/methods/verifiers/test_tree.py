"""Acceptance on trees: the output distribution, enumerated over drafts and coins; acceptance probabilities by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import Draws
from stridebench.harness.errors import ContractError
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.drafters.draft_model import siblings
from stridebench.methods.verifiers.k_seq import k_seq
from stridebench.methods.verifiers.rejection import acceptance_probs
from stridebench.methods.verifiers.tree import (
    children,
    delta_acceptance,
    multi_step,
    trie,
    verify_delta,
    verify_multi_step,
)
from tests.support.enumerated import enumerated
from tests.support.first_token import V, distributions, first_token_probs, rows, star


@pytest.mark.slow
@settings(max_examples=8)
@given(p=distributions, q=distributions, r=distributions, replacement=st.booleans())
def test_multi_step_has_the_targets_distribution_with_one_drafter_or_two(
    p: torch.Tensor, q: torch.Tensor, r: torch.Tensor, replacement: bool
) -> None:
    def act(draws: Draws) -> tuple[Draft, Acceptance]:
        first, second = (siblings(probs[None], count, draws, replacement) for probs, count in ((q, 2), (r, 1)))
        draft = star(torch.cat([first.tokens, second.tokens], 1), torch.cat([first.probs, second.probs], 1))
        return draft, verify_multi_step(draft, rows(p, 3), draws, inner=1, width=3)

    torch.testing.assert_close(first_token_probs(act), p, rtol=0, atol=1e-12)


def test_with_one_candidate_every_rule_is_that_of_chains() -> None:
    p, q = (torch.tensor([row], dtype=torch.float64) for row in ([0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.4, 0.1]))
    rows_of_p = torch.cat([p, p])
    for token in range(V):
        x = torch.tensor([token])
        expected = acceptance_probs(x, q, rows_of_p)
        kids = children(torch.tensor([-1]), 1, 1)
        torch.testing.assert_close(multi_step(x, q, rows_of_p, kids).accept_probs, expected)
        torch.testing.assert_close(k_seq(x, q, rows_of_p, trie(x[None]), kids).accept_probs, expected)


@settings(max_examples=8)
@given(p=distributions, tokens=st.lists(st.integers(0, V - 1), min_size=1, max_size=6))
def test_any_point_masses_have_the_targets_distribution(p: torch.Tensor, tokens: list[int]) -> None:
    """With repeats, impossible tokens, and all tokens."""
    x = torch.tensor(tokens)
    draft = Draft(x, parents=torch.full_like(x, -1))
    probs = first_token_probs(lambda draws: (draft, verify_delta(draft, rows(p, len(x)), draws)))
    torch.testing.assert_close(probs, p, rtol=0, atol=1e-12)


def test_acceptance_of_point_masses_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)[[0, 1, 0, 0, 0, 0]]
    x, parents = torch.tensor([1, 3, 1, 0, 2]), torch.tensor([-1, 0, -1, -1, -1])
    assert delta_acceptance(x, parents, p).tolist() == pytest.approx([0.25, 0.4, 0.0, 0.5 / 0.75, 1.0])


def test_at_zero_temperature_the_walk_follows_the_argmaxima() -> None:
    greedy = torch.eye(V, dtype=torch.float64)[[2, 0, 1, 3, 3]]
    draft = Draft(torch.tensor([1, 2, 1, 0]), parents=torch.tensor([-1, -1, 1, 1]))
    outputs = [(weight, acceptance.read()) for weight, acceptance in enumerated(partial(verify_delta, draft, greedy))]
    assert [(weight, read.path, read.token) for weight, read in outputs] == [(1.0, (1, 2), 3)]
    assert outputs[0][1].expected == 0.0, "not computed while enumerating"


def test_probes_are_never_in_a_path_and_extra_ids_come_with_the_read() -> None:
    p = torch.eye(V, dtype=torch.float64)[[0, 1, 2]]
    draft = Draft(torch.tensor([0, 1]), probes=1)
    draws = EnumeratingDraws()
    draws.replay([], [], {})
    read = verify_delta(draft, p[:2], draws, torch.tensor([3, 1])).read()
    assert (read.path, read.token, read.extra_ids) == ((0,), 1, (3, 1))


def test_a_node_of_probability_zero_is_a_contract_error() -> None:
    draft = star(torch.tensor([0, 1]), torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]]))
    with pytest.raises(ContractError, match="drafted token 1 at position 1 has q = 0"):
        verify_multi_step(draft, torch.full((3, V), 0.25), EnumeratingDraws(), inner=1, width=2)
