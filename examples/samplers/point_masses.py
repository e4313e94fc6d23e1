"""Rules for drafts that are not drawn but chosen: here the drafter's most probable token, as n-grams would give one."""

import numpy as np

from stridebench import sampler

THRESHOLD, ALPHA = 0.09, 0.3


def most_probable(tokens, q, draws):
    """Return the drafter's most probable token."""
    return q[-1].argmax()


@sampler(drafts=3, propose=most_probable)
def vllm_ngram(tokens, q, p, draws):
    """vLLM, rejection sampling of drafts without probabilities (n-grams).

    Source: vllm-project/vllm@0097a7bb, vllm/v1/sample/rejection_sampler.py. Claim: lossless.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token]):
            others = p[place].copy()
            others[token] = 0
            return [*tokens[:place], draws.token(others)]
    return [*tokens, draws.token(p[-1])]


@sampler(drafts=3, propose=most_probable)
def greedy_draft_full_q(tokens, q, p, draws):
    """Drafts by argmax, tested with the ratio of sampled drafts.

    Source: reported of ds4 (issue 482) and dflash (issue 74). Claim: lossless.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            left = np.maximum(p[place] - q[place], 0)
            return [*tokens[:place], draws.token(left if left.sum() > 0 else p[place])]
    return [*tokens, draws.token(p[-1])]


@sampler(drafts=3, propose=most_probable)
def jacobi_argmax_fallback(tokens, q, p, draws):
    """Jacobi Forcing's sampler: a refused draft is replaced by the target's first choice.

    Source: arXiv:2512.14681. Claim: lossless.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token]):
            return [*tokens[:place], int(p[place].argmax())]
    return [*tokens, draws.token(p[-1])]


@sampler(drafts=3, propose=most_probable)
def medusa_typical(tokens, q, p, draws):
    """Medusa, typical acceptance of the heads' first guesses.

    Source: FasterDecoding/Medusa@10a2697c, medusa/model/utils.py (threshold 0.09, alpha 0.3). Claim: lossy.
    """
    for place, token in enumerate(tokens):
        entropy = -(p[place] * np.log(p[place] + 1e-5)).sum()
        if p[place, token] <= min(THRESHOLD, ALPHA * np.exp(-entropy)):
            return [*tokens[:place], draws.token(p[place])]
    return [*tokens, draws.token(p[-1])]
