"""Block verification: the example of its paper, and never fewer accepted drafts than token verification."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.errors import ContractError, UsageError
from stridebench.methods.speculative import Speculative
from stridebench.methods.verifiers.block import block_acceptance, capped_ratios, verify_block
from stridebench.methods.verifiers.rejection import acceptance_probs, verify_chain


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


@pytest.mark.parametrize("seed", range(5))
def test_every_prefix_is_kept_at_least_as_often_as_by_token_verification(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.randn(rows, 3, generator=generator, dtype=torch.float64).mul(2).softmax(-1) for rows in (4, 5))
    accepted = kept(q, p)
    assert bool((accepted["block"] >= accepted["token"] - 1e-12).all())
    assert float(accepted["block"].sum()) > float(accepted["token"].sum())


def test_a_drafter_that_is_the_target_has_all_drafts_accepted() -> None:
    p = torch.randn(6, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    x = p[:5].argmax(-1)
    assert torch.equal(block_acceptance(p[:5], p, capped_ratios(x, p[:5], p)), torch.ones(5, dtype=torch.float64))


def test_point_masses_are_verified_one_by_one() -> None:
    p = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    x = torch.tensor([1, 2, 3])
    block, token = (verify(x, None, p, SeededDraws(0, "t", "p", 0)) for verify in (verify_block, verify_chain))
    assert torch.equal(block.path.nodes, token.path.nodes) and torch.equal(block.token, token.token)
    one_hot = torch.nn.functional.one_hot(x, 9).double()
    accept = block_acceptance(one_hot, p, capped_ratios(x, one_hot, p))
    assert torch.allclose(accept, p[:3].gather(1, x[:, None])[:, 0], rtol=1e-12, atol=0)


def test_a_draft_that_its_distribution_excludes_is_a_contract_error() -> None:
    q, p = torch.tensor([[1.0, 0.0]]), torch.full((2, 2), 0.5)
    with pytest.raises(ContractError, match="drafted token 1 at position 0 has q = 0"):
        verify_block(torch.tensor([1]), q, p, SeededDraws(0, "t", "p", 0))


def test_an_unknown_verifier_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="verifier is 'blok'; known: token, block"):
        Speculative("toy", verifier="blok")
