"""Rules that test a chain of drafts, each drawn from the drafter's distribution."""

import numpy as np

from stridebench import sampler

WEIGHT = 0.5


@sampler(drafts=3)
def vllm_token(tokens, q, p, draws):
    """vLLM, rejection sampling with a drafter's probabilities.

    Source: vllm-project/vllm@0097a7bb, vllm/v1/sample/rejection_sampler.py. Claim: lossless.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            return [*tokens[:place], draws.token(np.maximum(p[place] - q[place], 0))]
    return [*tokens, draws.token(p[-1])]


@sampler(drafts=3)
def mlx_equal(tokens, q, p, draws):
    """mlx-lm: a draft is kept if it equals the token that is sampled from the target.

    Source: ml-explore/mlx-lm@861bbd05, mlx_lm/generate.py; called biased in ml-explore/mlx-swift-lm#459. Claim: none.
    """
    emitted = []
    for place in range(len(tokens) + 1):
        emitted.append(draws.token(p[place]))
        if place == len(tokens) or emitted[-1] != tokens[place]:
            break
    return emitted


@sampler(drafts=3)
def ensemble_weight(tokens, q, p, draws):
    """transformers, `assistant_ensemble_weight` 0.5: the tested distribution is a mixture of target and drafter.

    Source: huggingface/transformers, pull request 45979. Claim: lossy.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(1 - WEIGHT + WEIGHT * p[place, token] / q[place, token]):
            return [*tokens[:place], draws.token(np.maximum(p[place] - q[place], 0))]
    return [*tokens, draws.token(p[-1])]
