"""Accept-and-resample functions are held against known distributions, and a biased one is named."""

from __future__ import annotations

import math

import pytest
import torch

from stridebench.harness.audit.kernels import (
    DRAFTS,
    VOCABULARY,
    Kernel,
    cases,
    check_kernel,
    single_position,
    transformers_kernel,
)
from stridebench.harness.errors import ContractError


def kernel(forgets_residual: bool) -> Kernel:
    def emit(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor) -> list[int]:
        tokens: list[int] = []
        for place, draft in enumerate(drafts.tolist()):
            if torch.rand(()) * q[place, draft] < p[place, draft]:
                tokens.append(draft)
                continue
            law = p[place] if forgets_residual else (p[place] - q[place]).clamp_min(0)
            return [*tokens, int(torch.multinomial(law, 1))]
        return [*tokens, int(torch.multinomial(p[-1], 1))]

    return emit


def test_a_correct_kernel_is_not_called_biased_and_its_interval_shrinks() -> None:
    few, many = (check_kernel(kernel(False), trials) for trials in (50, 400))
    assert not any(place.biased for place in (*few, *many))
    assert many[0].high - many[0].total_variation < few[0].high - few[0].total_variation
    # over all sets of ids, drafters and places; one report in twenty may miss
    bound = math.log((2**VOCABULARY - 2) * 4 * (DRAFTS + 1) / 0.05)
    assert few[0].high - few[0].total_variation == pytest.approx(math.sqrt(bound / (2 * 50)))
    assert [place.tokens for place in many if place.place == 0] == [400] * len(list(cases()))


@pytest.mark.slow
def test_a_forgotten_residual_is_named() -> None:
    places = check_kernel(kernel(True), 1500)
    assert any(place.biased and place.case == "far drafter" for place in places)
    assert not any(place.biased for place in places if place.place == 3)  # the bonus token's is right


def test_what_is_drawn_is_the_same_again_and_leaves_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    assert check_kernel(transformers_kernel, 20) == check_kernel(transformers_kernel, 20, seed=0)
    assert torch.random.get_rng_state().equal(before)


@pytest.mark.parametrize("tokens", [[], [0, 1, 2, 3, 4], [6], [-1]])
def test_tokens_that_no_kernel_may_emit_are_refused(tokens: list[int]) -> None:
    with pytest.raises(ContractError, match="the kernel emitted"):
        check_kernel(lambda p, q, drafts: tokens, 1)


def test_nothing_is_known_of_a_place_that_no_trial_reached() -> None:
    unreached = check_kernel(lambda p, q, drafts: [0], 2)[1]
    assert (unreached.tokens, unreached.low, unreached.high, unreached.biased) == (0, 0.0, 1.0, False)


def test_a_kernel_that_raises_or_returns_no_ids_is_one_error() -> None:
    def raises(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor) -> list[int]:
        raise ZeroDivisionError("no drafts")

    with pytest.raises(ContractError, match="the kernel raised ZeroDivisionError: no drafts"):
        check_kernel(raises, 1)
    with pytest.raises(ContractError, match="the kernel raised TypeError"):
        check_kernel(lambda p, q, drafts: None, 1)  # type: ignore[arg-type, return-value]


# The candidate generator of transformers that drafts by argmax is biased; the sampler it feeds is not.


P = torch.tensor([[0.3, 0.4, 0.2, 0.1]] * 2)
Q = torch.tensor([[0.6, 0.2, 0.1, 0.1]])
TRIALS = 2000


def first_token(own_drafts: bool) -> torch.Tensor:
    """Shares of the first token over all trials, with the generator's drafts or with drafts that are drawn."""
    torch.manual_seed(0)
    counts = torch.zeros(4)
    for _ in range(TRIALS):
        drafts = torch.multinomial(Q, 1)[:, 0]
        counts[(single_position if own_drafts else transformers_kernel)(P, Q, drafts)[0]] += 1
    return counts / TRIALS


@pytest.mark.slow
def test_its_first_token_is_a_fifth_away_from_the_target_and_as_computed_by_hand() -> None:
    """argmax drafts 0: kept half of the time; else the residual (0, .2, .1, 0) / .3 is drawn. 2,000 draws: 5 sd."""
    biased = first_token(own_drafts=True)
    assert (biased - torch.tensor([0.5, 1 / 3, 1 / 6, 0.0])).abs().max() < 5 * (0.25 / TRIALS) ** 0.5
    assert (biased - P[0]).abs().sum() / 2 > 0.15
    assert (first_token(own_drafts=False) - P[0]).abs().sum() / 2 < 0.05


@pytest.mark.slow
def test_the_audit_of_kernels_refutes_it_and_passes_the_sampler() -> None:
    assert any(place.biased for place in check_kernel(single_position, 400))
    assert not any(place.biased for place in check_kernel(transformers_kernel, 400))
