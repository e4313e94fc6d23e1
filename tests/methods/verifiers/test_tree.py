"""Acceptance on trees: the output distribution, enumerated over drafts and coins; acceptance probabilities by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.draft import Acceptance, Draft
from harness.core.draws import Draws
from harness.errors import ContractError
from harness.proof.enumerating_draws import EnumeratingDraws
from methods.trees.sampled import siblings
from methods.trees.structure import children, trie
from methods.verifiers.k_seq import k_seq, merge, verify_k_seq
from methods.verifiers.rejection import acceptance_probs
from methods.verifiers.tree import delta_acceptance, multi_step, verify_delta, verify_multi_step

V = 4
weights = st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0, 2.0]), min_size=V, max_size=V)
distributions = weights.filter(lambda row: sum(row) > 0).map(
    lambda row: torch.tensor(row, dtype=torch.float64) / sum(row)
)


def outcomes(act: Callable[[Draws], tuple[Draft, Acceptance]]) -> Iterator[tuple[float, Draft, Acceptance]]:
    draws = EnumeratingDraws()
    stack: list[list[int]] = [[]]
    while stack:
        draws.replay(stack.pop(), stack, {})
        draft, acceptance = act(draws)
        yield draws.weight, draft, acceptance


class Emitted(NamedTuple):
    """The distribution of the first emitted token, and the mean number of accepted nodes."""

    probs: torch.Tensor
    accepted: float

    @staticmethod
    def of(act: Callable[[Draws], tuple[Draft, Acceptance]]) -> Emitted:
        probs, accepted = torch.zeros(V, dtype=torch.float64), 0.0
        for weight, draft, acceptance in outcomes(act):
            read = acceptance.read()
            probs[int(draft.tokens[read.path[0]]) if read.path else read.token] += weight
            accepted += weight * len(read.path)
        return Emitted(probs, accepted)


def first_token_probs(act: Callable[[Draws], tuple[Draft, Acceptance]]) -> torch.Tensor:
    return Emitted.of(act).probs


def star(tokens: torch.Tensor, probs: torch.Tensor) -> Draft:
    """A draft of one level."""
    return Draft(tokens.reshape(-1), probs.reshape(-1, V), parents=torch.full((tokens.numel(),), -1))


def rows(p: torch.Tensor, nodes: int) -> torch.Tensor:
    return p.expand(nodes + 1, -1)


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


def test_with_one_candidate_every_rule_is_that_of_chains() -> None:
    p, q = (torch.tensor([row], dtype=torch.float64) for row in ([0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.4, 0.1]))
    rows_of_p = torch.cat([p, p])
    for token in range(V):
        x = torch.tensor([token])
        expected = acceptance_probs(x, q, rows_of_p)
        kids = children(torch.tensor([-1]), 1, 1)
        torch.testing.assert_close(multi_step(x, q, rows_of_p, kids).accept_probs, expected)
        torch.testing.assert_close(k_seq(x, q, rows_of_p, trie(x[None]), kids).accept_probs, expected)


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
    outputs = [(w, v.read()) for w, _, v in outcomes(lambda draws: (draft, verify_delta(draft, greedy, draws)))]
    assert [(w, read.path, read.token) for w, read in outputs] == [(1.0, (1, 2), 3)]
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
