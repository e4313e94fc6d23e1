"""Rejection sampling of drafts that were drawn, rounded, dropped or ended in another way than q says."""

import numpy as np
import torch

from stridebench import sampler


def rejection(tokens, q, p, draws):
    """Keep the drafts that rejection sampling keeps."""
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            left = np.maximum(p[place] - q[place], 0)
            return [*tokens[:place], draws.token(left if left.sum() > 1e-12 else p[place])]
    return [*tokens, draws.token(p[-1])]


def rounded(tokens, q, draws):
    """Draw from the drafter's distribution, rounded to bf16."""
    return draws.token(torch.tensor(q[-1]).log().bfloat16().softmax(-1).double())


def above_30_percent(tokens, q, draws):
    """Draw a token, and end the draft before it if its probability is below 0.3."""
    token = draws.token(q[-1])
    return token if q[-1, token] >= 0.3 else None


def after_40_percent(tokens, q, draws):
    """Draw a token, or end the draft if the one before had a probability below 0.4."""
    if len(tokens) > 0 and q[-2, tokens[-1]] < 0.4:
        return None
    return draws.token(q[-1])


@sampler(drafts=2, propose=rounded)
def bf16_draft(tokens, q, p, draws):
    """Drafts from a softmax in bf16, tested with a ratio in fp32.

    Source: reported of DeepSpec (issue 31). Claim: lossless.
    """
    return rejection(tokens, q, p, draws)


@sampler(drafts=3, propose=above_30_percent)
def drop_low_confidence(tokens, q, p, draws):
    """A sampled draft is dropped, and drafting ends, if its own probability is below 0.3.

    Source: `p_min` of llama.cpp (pull request 22506), which is exact with its greedy drafts, here with sampled ones.
    Claim: none.
    """
    return rejection(tokens, q, p, draws)


@sampler(drafts=3, propose=after_40_percent)
def stop_after_low_confidence(tokens, q, p, draws):
    """transformers, dynamic draft length: drafting ends behind a sampled token of a probability below 0.4.

    Source: arXiv:2405.04304; huggingface/transformers@1097d4b3, ConfidenceCriteria. Claim: lossless.
    """
    return rejection(tokens, q, p, draws)
