"""Drafts from a softmax in bf16, tested with a ratio in fp32.

Source: reported of DeepSpec (issue 31). Claim: lossless.
"""

import numpy as np
import torch

DRAFTS = 2


def propose(tokens, q, draws):
    return draws.token(torch.tensor(q[-1]).log().bfloat16().softmax(-1).double())


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            left = np.maximum(p[place] - q[place], 0)
            return [*tokens[:place], draws.token(left if left.sum() > 1e-12 else p[place])]
    return [*tokens, draws.token(p[-1])]
