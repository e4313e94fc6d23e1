"""Drafts by argmax, tested with the ratio of sampled drafts.

Source: reported of ds4 (issue 482) and dflash (issue 74). Claim: lossless.
"""

import numpy as np
from vllm_ngram import propose  # noqa: F401

DRAFTS = 3


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            left = np.maximum(p[place] - q[place], 0)
            return [*tokens[:place], draws.token(left if left.sum() > 0 else p[place])]
    return [*tokens, draws.token(p[-1])]
