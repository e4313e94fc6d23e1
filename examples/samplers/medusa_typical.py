"""Medusa, typical acceptance of the heads' first guesses.

Source: FasterDecoding/Medusa@10a2697c, medusa/model/utils.py (threshold 0.09, alpha 0.3). Claim: lossy.
"""

import numpy as np
from vllm_ngram import propose  # noqa: F401

DRAFTS = 3
THRESHOLD, ALPHA = 0.09, 0.3


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        entropy = -(p[place] * np.log(p[place] + 1e-5)).sum()
        if p[place, token] <= min(THRESHOLD, ALPHA * np.exp(-entropy)):
            return [*tokens[:place], draws.token(p[place])]
    return [*tokens, draws.token(p[-1])]
