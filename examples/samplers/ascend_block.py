"""vLLM Ascend, the lengths of block verification with the residual of token verification.

Source: vllm-project/vllm-ascend, issues 7807 and 7808. Claim: lossless.
"""

import numpy as np

DRAFTS = 3


def verify(tokens, q, p, draws):
    joint = [1.0]
    for place, token in enumerate(tokens):
        joint.append(min(1.0, joint[-1] * p[place, token] / q[place, token]))
    if draws.coin(joint[-1]):
        return [*tokens, draws.token(p[-1])]
    for stop in range(len(tokens) - 1, -1, -1):
        left = np.maximum(joint[stop] * p[stop] - q[stop], 0).sum()
        residual = np.maximum(p[stop] - q[stop], 0)
        whole = left + 1 - joint[stop]
        if residual.sum() > 0 and (stop == 0 or (whole > 0 and draws.coin(left / whole))):
            return [*tokens[:stop], draws.token(residual)]
    return [draws.token(p[0])]
