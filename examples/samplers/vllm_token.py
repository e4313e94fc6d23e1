"""vLLM, rejection sampling with a drafter's probabilities.

Source: vllm-project/vllm@0097a7bb, vllm/v1/sample/rejection_sampler.py. Claim: lossless.
"""

import numpy as np

DRAFTS = 3


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            return [*tokens[:place], draws.token(np.maximum(p[place] - q[place], 0))]
    return [*tokens, draws.token(p[-1])]
