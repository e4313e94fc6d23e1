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


def race_again(q, left):
    """Return the distribution of argmin noise / left, given that argmin noise / q is a token that ``left`` lacks.

    With m the least noise / q, any other token has the noise q m and an exponential time on top; m is exponential too.
    """
    order = np.flatnonzero(left)
    order = order[np.argsort(q[order] / left[order])]
    enters, rates = q[order] / left[order], np.cumsum(left[order])
    reached = 1 / (1 + np.append(0, np.cumsum(rates[:-1] * np.diff(enters))))
    ends = (reached - np.append(reached[1:], 0)) / rates
    weights = np.zeros_like(left)
    weights[order] = left[order] * np.cumsum(ends[::-1])[::-1]
    return weights


@sampler(drafts=3)
def vllm_shared_noise(tokens, q, p, draws):
    """vLLM before #54282: the noise that drew a draft draws its correction too.

    Source: vllm-project/vllm, pull request 54282. Claim: lossless.
    """
    for place, token in enumerate(tokens):
        if not draws.coin(p[place, token] / q[place, token]):
            return [*tokens[:place], draws.token(race_again(q[place], np.maximum(p[place] - q[place], 0)))]
    return [*tokens, draws.token(p[-1])]
