"""Block verification: the example of its paper, never fewer accepted drafts than token verification, and trees."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws, tree_path
from stridebench.methods.verifiers.block import (
    Traversal,
    block_acceptance,
    capped_ratios,
    verify_block,
    verify_traversal,
)
from stridebench.methods.verifiers.rejection import acceptance_probs, residual, verify_chain
from stridebench.methods.verifiers.tree import children, multi_step, verify_delta

PARENTS = torch.tensor([-1, -1, 0, 0, 1, 1])


def kept(q: Tensor, p: Tensor) -> dict[str, Tensor]:
    """The probability that each draft is accepted, averaged over drafts of independent positions, by verifier."""
    totals = {"token": torch.zeros(len(q), dtype=torch.float64), "block": torch.zeros(len(q), dtype=torch.float64)}
    for ids in product(range(q.shape[1]), repeat=len(q)):
        x = torch.tensor(ids)
        weight = q.gather(1, x[:, None]).prod()
        totals["token"] += weight * acceptance_probs(x, q, p).cumprod(0)
        totals["block"] += weight * block_acceptance(q, p, capped_ratios(x, q, p)).cumprod(0)
    return totals


def test_the_papers_example_accepts_11_ninths_where_token_verification_accepts_10() -> None:
    """Section 3 of the paper: two ids, the target prefers the second by two to one, and the drafter the first."""
    q = torch.tensor([[2 / 3, 1 / 3]] * 2, dtype=torch.float64)
    p = torch.tensor([[1 / 3, 2 / 3]] * 3, dtype=torch.float64)
    accepted = {name: float(each.sum()) for name, each in kept(q, p).items()}
    assert accepted == pytest.approx({"token": 10 / 9, "block": 11 / 9}, rel=1e-12)


def laws(seed: int, rows: int, vocabulary: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


@pytest.mark.parametrize("seed", range(3))
def test_every_prefix_is_kept_at_least_as_often_as_by_token_verification(seed: int) -> None:
    accepted = kept(laws(seed, 4), laws(seed + 100, 5))
    assert bool((accepted["block"] >= accepted["token"] - 1e-12).all())
    assert float(accepted["block"].sum()) > float(accepted["token"].sum())


def test_point_masses_are_verified_one_by_one() -> None:
    p = laws(0, 4, 9)
    x = torch.tensor([1, 2, 3])
    block, token = (verify(x, None, p, SeededDraws(0, "t", "p", 0)) for verify in (verify_block, verify_chain))
    assert torch.equal(block.path.nodes, token.path.nodes) and torch.equal(block.token, token.token)
    one_hot = torch.nn.functional.one_hot(x, 9).double()
    accept = block_acceptance(one_hot, p, capped_ratios(x, one_hot, p))
    assert torch.allclose(accept, p[:3].gather(1, x[:, None])[:, 0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("seed", range(2))
def test_on_a_chain_traversal_is_block_verification(seed: int) -> None:
    q, p = laws(seed, 4), laws(seed + 100, 5)
    for ids in product(range(3), repeat=4):
        x = torch.tensor(ids)
        traversal, w = Traversal(x, q, p, [-1, 0, 1, 2]), capped_ratios(x, q, p)
        assert torch.allclose(traversal.acceptance(), block_acceptance(q, p, w), rtol=0, atol=1e-12)
        for stop in range(4):
            if float(traversal.stops[stop]) > 1e-9:
                after = residual(w[stop] * p[stop : stop + 1], q[stop : stop + 1])[0]
                assert torch.allclose(traversal.laws[stop], after, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_traversal_accepts_more_than_sibling_by_sibling(seed: int) -> None:
    """Averaged over all trees of two children a node, drawn without replacement from one law a level."""
    levels, p = laws(seed, 2), laws(seed + 100, 7)
    p[2:] = p[2]  # the target's laws do not depend on the branch either
    kept = {"traversal": 0.0, "siblings": 0.0}
    for ids in product(permutations(range(3), 2), repeat=3):
        x = torch.tensor([token for pair in ids for token in pair])
        q = levels[[0, 0, 1, 1, 1, 1]]
        for node in (1, 3, 5):
            q[node, x[node - 1]] = 0.0
        q = q / q.sum(-1, keepdim=True)
        weight = float(q.gather(1, x[:, None]).prod())
        rules = {
            "traversal": Traversal(x, q, p, PARENTS.tolist()).acceptance(),
            "siblings": multi_step(x, q, p, children(PARENTS, 3, 2)).accept_probs,
        }
        for name, accept in rules.items():
            kept[name] += weight * float(tree_path(torch.zeros(6, dtype=torch.bool), accept, PARENTS).expected)
    assert kept["traversal"] > kept["siblings"] + 1e-3


def test_point_masses_of_a_tree_are_verified_as_such() -> None:
    p, draft = laws(0, 7), Draft(torch.tensor([0, 1, 2, 0, 1, 2]), parents=PARENTS)
    one, other = (verify(draft, p, SeededDraws(3, "t", "p", 0)) for verify in (verify_traversal, verify_delta))
    assert torch.equal(one.path.nodes, other.path.nodes) and torch.equal(one.token, other.token)
