"""CLLM's decoding: the target's text, block by block, each until it is stable; and Jacobi Forcing's two options."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import HostAcceptance
from stridebench.harness.core.loop import advance, decode, start
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.cllm import Cllm, CLLMBlocks
from tests.support import toys

TWO = Cllm(block=6, blocks=2, ratio=0.5, pool=4)


def opened(prompt: tuple[int, ...], budget: int, **params: object) -> Run:
    return toys.opened(Sampling(0.0), budget, prompt, **params)


@pytest.mark.parametrize("block", [2, 5])
def test_a_block_is_read_until_it_is_stable_and_then_gives_the_first_token_of_the_next(block: int) -> None:
    """A pass reads the remaining tokens of the block. Once all are accepted, it reads a whole block."""
    steps = decode(Cllm(block), opened((0, 1), 60, vocabulary=3)).steps
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
        tokens = advance(method, run, state).draft.tokens.tolist()
        if before:
            assert tokens == list(before)
        else:
            drawn |= set(tokens)
    assert drawn == {2, 4}


def test_no_more_guesses_are_drawn_than_there_is_room_for() -> None:
    state, run, fresh = CLLMBlocks(8, (0, 1)), opened((0, 1), 4, vocabulary=3), opened((0, 1), 4, vocabulary=3).draws
    state.grow(run, 2, 0.1)
    assert len(state.tokens) == 3
    assert run.draws.integers(1, 1000, "init").tolist() == fresh.integers(4, 1000, "init")[3:].tolist()


def test_predictions_of_the_rows_behind_the_accepted_ones_are_the_next_guesses() -> None:
    state = CLLMBlocks(5, (0,), 5, (3, 0, 0, 0), ((0, 1, 2, 3),))
    state.advance(HostAcceptance((0,), 1, 0.0, extra_ids=(3, 1, 5, 0, 2)))
    assert state.tokens == (5, 0)
    state.chains = ((0, 1),)
    state.advance(HostAcceptance((0,), 0, 0.0, extra_ids=(5, 0, 2)))
    assert state.tokens == ()


@pytest.mark.parametrize(("blocks", "ratio", "length"), [(1, 0.5, 1), (2, 0.75, 5), (2, 0.8, 1)])
def test_the_next_block_is_guessed_once_a_share_of_the_current_one_is_fixed(
    blocks: int, ratio: float, length: int
) -> None:
    """Three of four tokens are fixed. The next block begins with the guess that is left, as released."""
    state = CLLMBlocks(4, (0, 1), end=4, tokens=(2,))
    state.grow(opened((0, 1, 2), 40, vocabulary=3), blocks, ratio)
    assert len(state.tokens) == length and state.end == 4
    assert state.tokens[:2] == (2, 2)[:length] and set(state.tokens[2:]) <= {0, 1}


def branching() -> CLLMBlocks:
    """A block with three guesses behind the token 2, and two texts that have a 2."""
    return CLLMBlocks(4, (0,), end=6, tokens=(5, 6, 7), pool=((2, 5, 0, 0), (4, 4), (9, 2, 8)))


def test_what_followed_the_last_token_in_the_pool_is_tried_as_branches() -> None:
    """The newer text gives 8 and goes on with the guesses; the older one has the first guess too."""
    state = branching()
    draft = state.propose(opened((0, 1, 2), 40, vocabulary=10))
    assert draft.tokens.tolist() == [5, 6, 7, 8, 6, 7, 0, 0]
    assert draft.explicit_parents.tolist() == [-1, 0, 1, -1, 3, 4, 0, 6]
    assert state.chains == ((0, 1, 2), (3, 4, 5), (0, 6, 7))


@pytest.mark.parametrize(("context", "nodes"), [(11, [5, 6, 7, 8, 6, 7]), (8, [5, 6, 7])])
def test_there_are_as_many_branches_as_the_context_has_room_for(context: int, nodes: list[int]) -> None:
    """There is room for eight or five nodes behind the three tokens."""
    draft = branching().propose(opened((0, 1, 2), 40, vocabulary=10, context=context))
    assert draft.tokens.tolist() == nodes and (draft.parents is None) == (len(nodes) == 3)


@pytest.mark.parametrize(("path", "tokens"), [((), (2, 3)), ((0,), (3,)), ((3,), (6,)), ((0, 6), ()), ((3, 4, 5), ())])
def test_guesses_are_predicted_along_the_branch_that_was_kept(path: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    state = branching()
    state.propose(opened((0, 1, 2), 40, vocabulary=10))
    state.advance(HostAcceptance(path, 1, 0.0, extra_ids=tuple(range(1, 10))))
    assert state.tokens == tokens


def test_the_next_block_is_kept_when_a_branch_of_the_current_one_is_followed() -> None:
    """The block ends behind two of the four guesses, so a candidate has two tokens."""
    state = CLLMBlocks(4, (0,), end=5, tokens=(5, 6, 5, 6), pool=((2, 7, 8, 9),))
    draft = state.propose(opened((0, 1, 2), 40, vocabulary=10))
    assert draft.tokens.tolist() == [5, 6, 5, 6, 7, 8] and state.chains == ((0, 1, 2, 3), (4, 5))
    state.advance(HostAcceptance((4,), 1, 0.0, extra_ids=tuple(range(10, 17))))
    assert state.tokens == (16, 13)


def test_the_pool_keeps_the_newest_texts_from_the_first_token_of_their_block_on() -> None:
    run = opened((0, 1, 2, 3), 40, vocabulary=10)
    state = CLLMBlocks(3, (0,), end=5, tokens=(9,), pool=((1,), (2,)))
    state.remember(run, 2)
    assert state.pool == ((2,), (2, 3, 9))
    state.remember(run, 0)
    assert state.pool == ((2,), (2, 3, 9))


def test_branches_are_followed_and_both_blocks_are_in_flight_in_a_decode() -> None:
    """So the proof of this setting reaches the code of both options."""
    run = opened((0, 1), 60, vocabulary=3)
    state = start(TWO, run)
    branches, lengths = 0, set()
    for _ in range(20):
        path = advance(TWO, run, state).read.path
        branches += bool(path) and path[-1] >= len(state.chains[0])
        lengths.add(len(state.chains[0]))
    assert branches > 0 and max(lengths) > TWO.block > min(lengths)


def test_candidates_alone_need_a_mask_of_trees() -> None:
    assert TWO.requirements == {Requirement.TREE_MASK} and Cllm(blocks=2).requirements == frozenset()
