"""LinearSpec: two passes a step, drafts of the mask that sees both sides, and no trace of them in the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Window
from stridebench.harness.core.loop import advance, decode, start
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import UsageError
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.linear_spec import LinearSpec
from tests.support import toys


def opened(budget: int, temperature: float = 1.0) -> Run:
    return toys.opened(Sampling(temperature), budget, (0, 1, 2), vocabulary=4)


def test_a_step_is_a_pass_that_drafts_and_one_that_verifies() -> None:
    """Near the end fewer are drafted; the last token is drawn in one pass without drafts."""
    steps = decode(LinearSpec(block=4), opened(24)).steps
    assert all((step.nfe, step.rows, step.drafted) == (2, 8, 3) for step in steps[:4])
    left = 24 - sum(step.emitted for step in steps[:-1])
    assert steps[-1].nfe == (1 if left == 1 else 2) and steps[-1].drafted == min(3, left - 1)
    assert decode(LinearSpec(block=4), opened(1)).steps[0].nfe == 1


def test_drafts_are_drawn_from_rows_that_see_the_text_the_last_token_and_each_other() -> None:
    run, method = opened(24), LinearSpec(block=4)
    model = Tabular("tabular", {"vocabulary": 4})
    state = start(method, run)
    for _ in range(3):
        tokens = list(run.target.tokens)
        drafts = advance(method, run, state).draft
        cache, last = model.cache(), len(tokens) - 1
        cache.extend(Window(torch.tensor(tokens[:-1]), torch.arange(last), 0, None, 0))
        block = torch.tensor([tokens[-1], 0, 0, 0])
        window = Window(block, torch.arange(last, last + 4), last, torch.ones(4, 4, dtype=torch.bool), 3)
        assert drafts.probs is not None
        torch.testing.assert_close(drafts.probs, warp(cache.extend(window).logits, Sampling(1.0)))


@pytest.mark.parametrize("threshold", [0.0, 0.6])
def test_the_cache_of_a_greedy_decode_is_that_of_autoregressive_decoding(threshold: float) -> None:
    run, alone = opened(24, 0.0), opened(24, 0.0)
    decode(LinearSpec(block=4, threshold=threshold), run)
    decode(Autoregressive(), alone)
    entries = min(run.target.cached, alone.target.cached)
    assert run.target.cache_state[:entries] == alone.target.cache_state[:entries]


def test_drafts_of_several_passes_are_point_masses() -> None:
    run, method = opened(24), LinearSpec(block=4, threshold=1.0)
    step = advance(method, run, start(method, run))
    assert step.draft.probs is None and run.target.passes == 4  # one mask a pass, and the pass that verifies


def test_a_model_without_a_mask_for_blocks_is_refused_before_the_first_step() -> None:
    run = opened(4)
    run.models.capabilities = replace(run.capabilities, block_mask=None)
    with pytest.raises(UsageError, match="tabular fills no blocks of masks; take a model that meets BOTH_MASKS"):
        start(LinearSpec(), run)
