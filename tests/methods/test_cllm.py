"""CLLM's decoding: the target's greedy text, block by block, each block until it is stable."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, advance, decode, start
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import CASES, GRID_CASES
from stridebench.methods.cllm import Cllm, CLLMBlock

GREEDY = [case for case in (*CASES, *GRID_CASES) if case.sampling.temperature == 0]


def opened(prompt: tuple[int, ...], budget: int, **params: object) -> Run:
    model = Tabular("tabular", params)
    return open_run(model, lambda name: model, prompt, Sampling(0.0), budget, SeededDraws(0, "t", "p", 0))


def decoded(block: int, budget: int, prompt: tuple[int, ...] = (0, 1), **params: object) -> Decode:
    return decode(Cllm(block), opened(prompt, budget, **params))


@pytest.mark.parametrize("block", [2, 5])
def test_a_block_is_read_until_it_is_stable_and_then_gives_the_first_token_of_the_next(block: int) -> None:
    """A pass reads the remaining tokens of the block. Once all are accepted, it reads a whole block."""
    steps = decoded(block, 60, vocabulary=3).steps
    assert steps[0].rows == block and any(step.accepted for step in steps)
    for step, following in pairwise(steps[:20]):
        remaining = step.rows - step.emitted
        assert step.rows == step.drafted + 1 and following.rows == (remaining or block)
        assert (remaining == 0) == (step.accepted == step.drafted)


def test_guesses_are_drawn_from_the_prompt_and_then_from_the_models_own_predictions() -> None:
    run = opened((4, 2, 4), 40, vocabulary=7)
    method, drawn = Cllm(12), set()
    state = start(method, run)
    for _ in range(6):
        before = state.tokens
        assert isinstance(state, CLLMBlock)
        result = advance(method, run, state)
        if before is None:
            drawn |= set(result.draft.tokens.tolist())
        else:
            assert torch.equal(before, result.draft.tokens)
    assert drawn == {2, 4}


def test_predictions_of_the_rows_behind_the_accepted_ones_are_the_next_guesses() -> None:
    p = torch.eye(6)[[3, 1, 5, 0, 2]]
    state = CLLMBlock(5, torch.tensor([0]), torch.tensor([3, 0, 0, 0]))
    state.advance(p, 1)
    assert state.tokens is not None and state.tokens.tolist() == [5, 0]
    state.advance(p[2:], 1)
    assert state.tokens.tolist() == []
    state.advance(p[4:], 0)
    assert state.tokens is None
