"""vLLM, block verification.

Source: arXiv:2403.10444; vllm-project/vllm@98c77cf0, vllm/v1/worker/gpu/spec_decode/rejection_sampler_utils.py.
Claim: lossless.
"""

import numpy as np

DRAFTS = 3


def verify(tokens, q, p, draws):
    joint = [1.0]
    for place, token in enumerate(tokens):
        joint.append(min(1.0, joint[-1] * p[place, token] / q[place, token]))
    for stop in range(len(tokens), 0, -1):
        if stop == len(tokens):
            if draws.coin(joint[stop]):
                return [*tokens, draws.token(p[stop])]
            continue
        left = np.maximum(joint[stop] * p[stop] - q[stop], 0)
        whole = left.sum() + 1 - joint[stop]
        if whole > 0 and draws.coin(left.sum() / whole):
            return [*tokens[:stop], draws.token(left)]
    return [draws.token(np.maximum(p[0] - q[0], 0))]
