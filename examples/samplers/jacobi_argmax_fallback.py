"""Jacobi Forcing's sampler: a refused draft is replaced by the target's first choice.

Source: arXiv:2512.14681. Claim: lossless.
"""

from vllm_ngram import propose  # noqa: F401

DRAFTS = 3


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token]):
            return [*tokens[:place], int(p[place].argmax())]
    return [*tokens, draws.token(p[-1])]
