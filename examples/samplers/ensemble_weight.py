"""transformers, `assistant_ensemble_weight` 0.5: the tested distribution is a mixture of target and drafter.

Source: huggingface/transformers, pull request 45979. Claim: lossy.
"""

import numpy as np

DRAFTS = 3
WEIGHT = 0.5


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(1 - WEIGHT + WEIGHT * p[place, token] / q[place, token]):
            return [*tokens[:place], draws.token(np.maximum(p[place] - q[place], 0))]
    return [*tokens, draws.token(p[-1])]
