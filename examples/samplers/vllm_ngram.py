"""vLLM, rejection sampling of drafts without probabilities (n-grams).

Source: vllm-project/vllm@0097a7bb, vllm/v1/sample/rejection_sampler.py. Claim: lossless.
"""

DRAFTS = 3


def propose(tokens, q, draws):
    return q[-1].argmax()


def verify(tokens, q, p, draws):
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token]):
            others = p[place].copy()
            others[token] = 0
            return [*tokens[:place], draws.token(others)]
    return [*tokens, draws.token(p[-1])]
