"""Acceptance on trees: the output distribution, enumerated over drafts and coins; acceptance probabilities by hand."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.errors import ContractError
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.verifiers.block import verify_block
from stridebench.methods.verifiers.k_seq import k_seq, merge
from stridebench.methods.verifiers.rejection import acceptance_probs, residual, verify_chain
from stridebench.methods.verifiers.tree import (
    children,
    delta_acceptance,
    multi_step,
    paths,
    repeats,
    trie,
    verify_delta,
    verify_multi_step,
)
from tests.support.enumerated import enumerated
from tests.support.first_token import V, distributions, first_token_probs, rows, star
from tests.support.tree_paths import path_to, token_paths


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


def test_a_draft_that_its_distribution_excludes_is_a_contract_error() -> None:
    x, q, p = torch.tensor([0, 1]), torch.tensor([[1.0, 0, 0, 0]] * 2), torch.full((3, V), 0.25)
    for verify in (
        lambda draws: verify_multi_step(star(x, q), p, draws, inner=1, width=2),
        lambda draws: verify_chain(x, q, p, draws),
        lambda draws: verify_block(x, q, p, draws),
    ):
        with pytest.raises(ContractError, match="drafted token 1 at position 1 has q = 0"):
            verify(SeededDraws(0, "t", "p", 0))


# Structure of trees against plain loops: tries, children, paths and repeats.


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


# k-SEQ: rho and repeated nodes by hand.


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


# Rejection sampling of a chain: what is left after a rejection, in both forms of a drafter's distribution.


P = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize("tokens", [[0, 1, 3], [1, 0, 2], [3, 3, 3]])
def test_ids_are_point_masses(tokens: list[int]) -> None:
    ids = torch.tensor(tokens)
    assert torch.equal(residual(P, ids), residual(P, torch.zeros_like(P).scatter(1, ids[:, None], 1.0)))


@pytest.mark.parametrize("seed", range(12))
def test_a_chain_of_point_masses_is_one_of_their_rows(seed: int) -> None:
    """Whether none, some or all of the drafts are accepted."""
    p = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed)) ** 3
    p[2] = torch.eye(6)[seed % 6]  # a greedy row
    p = p / p.sum(1, keepdim=True)
    x = p[:3].argmax(1) if seed % 2 else torch.tensor([seed % 6, 1, seed % 6])
    sides = [verify_chain(x, q, p, SeededDraws(seed, "t", "p", 0)) for q in (None, torch.eye(6)[x])]
    first, second = (side.read() for side in sides)
    assert (first.path, first.token) == (second.path, second.token)
    assert first.expected == pytest.approx(second.expected)
